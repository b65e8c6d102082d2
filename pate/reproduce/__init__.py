"""What the papers ran, again: their tables beside ours."""
