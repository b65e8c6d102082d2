"""Components that a config names: from a short name or a dotted path to a class, and whom to trust."""
