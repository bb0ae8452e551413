"""Making room in a stopped node whose cluster runs on: what its leaders have, or are told to delete, goes."""
