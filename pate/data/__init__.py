"""From a name in the config to arrays, and from a record to its part."""
