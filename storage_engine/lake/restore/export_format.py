"""Formats of exported messages. Imports no library."""

from __future__ import annotations

from enum import StrEnum


class ExportFormat(StrEnum):
    """Format of an exported file. ``parquet``: typed columns. ``jsonl``: one JSON object on each line."""

    PARQUET = "parquet"
    JSON_LINES = "jsonl"
