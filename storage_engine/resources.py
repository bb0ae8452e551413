"""Finds the files that a project is made of: DAGs, Spark entry points, suites, a sample store.

The wheel has them under ``storage_engine/project``; a checkout has them at the top of the repository. Nothing
else in the package may depend on which of the two it runs from.
"""

from __future__ import annotations

from pathlib import Path

from storage_engine.exceptions import BadInputError

_PACKAGED = Path(__file__).parent / "project"
_CHECKOUT = Path(__file__).parent.parent


def project_path(name: str, in_checkout: str | None = None) -> Path:
    """Return the path of a bundled file or directory.

    :param name: relative path, such as ``dags`` or ``spark_jobs/archive_segments.py``.
    :param in_checkout: its path in a checkout, if that isn't ``name``.
    :raises BadInputError: neither the installed package nor a checkout has it.
    """
    for candidate in (_PACKAGED / name, _CHECKOUT / (in_checkout or name)):
        if candidate.exists():
            return candidate
    raise BadInputError(
        f"{name}: expected this path in {_PACKAGED} or, in a checkout, in {_CHECKOUT}, found it in neither. "
        "Install the package again."
    )
