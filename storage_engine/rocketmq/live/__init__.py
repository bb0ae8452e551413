"""A store whose broker keeps running. It is read from disk, and held and released through the broker."""
