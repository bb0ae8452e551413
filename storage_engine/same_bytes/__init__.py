"""When is a file the same file, with the same bytes? What a file system's times tell of it, and what not."""
