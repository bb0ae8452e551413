"""Tables of facts as rows and as columns of NumPy: what the rules read without pandas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_NUMBERS = frozenset({int, bool, float})


@dataclass(frozen=True, slots=True)
class FactTable:
    """:param rows: each with the same columns.
    :param columns: that a rule reads, in its order; one may stand there twice.
    """

    rows: tuple[Mapping[str, Any], ...]
    columns: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        """Return a column as an array. A number that isn't known is NaN, as in pandas."""
        values = [row[name] for row in self.rows]
        kinds = {*map(type, values)}
        if type(None) in kinds and len(kinds) > 1 and kinds - {type(None)} <= _NUMBERS:
            return np.array([np.nan if value is None else value for value in values], float)
        return np.array(values) if kinds <= _NUMBERS else np.array(values, object)
