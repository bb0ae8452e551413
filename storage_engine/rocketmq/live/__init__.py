"""A store whose broker runs on: read from its disk, held and released through the broker itself."""
