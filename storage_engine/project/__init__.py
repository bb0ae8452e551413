"""Puts a runnable project in place, and runs it on this machine: ``init`` and ``up``."""
