"""Where validation puts its files; free of Great Expectations, which takes seconds to import."""

from pathlib import Path

SITE_DIRECTORY = Path("gx/uncommitted/data_docs/storage_engine")
"""Data Docs, below Great Expectations' own directory."""
