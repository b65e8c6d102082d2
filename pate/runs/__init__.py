"""Where a run lives: every file it has, and what of it may leave."""
