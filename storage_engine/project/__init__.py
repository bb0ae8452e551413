"""Creates a runnable project, and runs it on this machine: ``init`` and ``up``."""
