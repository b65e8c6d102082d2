"""The papers' experiments run again: their tables beside ours."""
