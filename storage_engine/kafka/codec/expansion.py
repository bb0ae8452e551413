"""What is wrong with compressed records."""

from __future__ import annotations


class ExpansionError(Exception):
    """Compressed records are not what their codec says.

    :param expected: what they should be.
    :param found: what they are.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found
