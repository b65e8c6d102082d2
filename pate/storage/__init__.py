"""Storage: files that are written whole or not at all, and shared file systems and object stores by URL."""

from pate.storage.stores import Storage, check_exclusive, is_url, open_storage, pull

__all__ = ["Storage", "check_exclusive", "is_url", "open_storage", "pull"]
