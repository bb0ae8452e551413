"""Checks that a file still has the same bytes: what its file system's times tell of that, and what not."""
