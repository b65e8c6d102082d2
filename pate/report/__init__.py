"""A finished run as a JSON file, a page and a table. Nothing here may hold anything private."""
