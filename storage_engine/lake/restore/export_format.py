"""Formats of exported messages: without a library."""

from __future__ import annotations

from enum import StrEnum


class ExportFormat(StrEnum):
    """``parquet``: typed columns. ``jsonl``: one JSON object a line."""

    PARQUET = "parquet"
    JSON_LINES = "jsonl"
