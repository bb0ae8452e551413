"""Lakes that receipts were written to: one of these that isn't there is never made anew.

A lake on a disk that isn't mounted looks like one that was never made. Made anew below the mount point it
would take segments in, know no store, and be hidden by the disk that is mounted over it later.
"""

from __future__ import annotations

from storage_engine.exceptions import LakeMissingError, LakeUnavailableError
from storage_engine.lake.catalog import Lake, open_lake
from storage_engine.lake.config import LakeConfig
from storage_engine.retention.journal import Journal, Step


def open_or_make(config: LakeConfig, journal: Journal) -> Lake:
    """Open a lake; where there is none, make it, unless the journal knows of receipts in it.

    :raises LakeUnavailableError: it can't be opened, or is gone; nothing was made.
    """
    try:
        return open_lake(config, create=False)
    except LakeMissingError as error:
        if config.location in _lakes_with_receipts(journal):
            raise LakeUnavailableError(
                f"lake {config.location}: expected the receipts that the journal knows in this lake, found "
                f"no lake there ({error}) Nothing was created. Check that its disk is mounted; if the lake "
                "is lost for good, put it back from a backup, or configure one at another place."
            ) from error
    return open_lake(config, create=True)


def _lakes_with_receipts(journal: Journal) -> set[str]:
    """Where the lakes are that hold receipts of any store, by the journal's word."""
    return {
        event.payload["lake"]
        for step in (Step.ARCHIVE, Step.SEALED)
        for event in journal.results_of_all_stores(step)
        if "receipt_hash" in event.payload
    }
