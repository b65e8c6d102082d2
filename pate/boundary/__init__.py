"""The trust boundary: the only door between private votes and the world, and what errors may say."""
