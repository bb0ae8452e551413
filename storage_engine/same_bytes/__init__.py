"""The question whether a file still has the same bytes: what a file system's times tell of it, and what not."""
