"""A run as files: their names, which of them may leave, and where they are, a folder or a URL."""
