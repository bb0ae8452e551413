"""Retention of message-broker storage as a data-platform job.

Segments of a broker's log are archived to an Iceberg lake, the copy is proven byte for byte, and
only then are they deleted. See ``docs/architecture.md`` for the layers.
"""

__version__ = "0.2.0"
