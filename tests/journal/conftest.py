"""Stores with a journal, as the engine's own tests have them."""

from tests.retention.conftest import archived, fingerprint, journal_of, lake_dir, managed, planned

__all__ = ["archived", "fingerprint", "journal_of", "lake_dir", "managed", "planned"]
