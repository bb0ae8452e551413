"""Checks that a file still has the same bytes, by its times where its file system's times can be trusted."""
