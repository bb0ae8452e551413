"""Frozen dataclasses and protocols that every layer shares. Standard library only."""
