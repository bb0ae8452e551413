"""Runs every benchmark, or those named: ``python -m benchmarks [decode] [kafka_decode] [archive] …``.

Each prints lines of the form ``bench NAME ratio=1.23 must=1.00`` and writes benchmarks/results/NAME.json.
Figures are never a pass or a failure.
"""

from __future__ import annotations

import importlib
import sys

from benchmarks.common import report

MODULES = (
    "decode",
    "kafka_decode",
    "archive",
    "kafka_archive",
    "plans",
    "shared_files",
    "query",
    "put_latency",
    "engine_append",
)


def main(names: list[str]) -> int:
    if unknown := sorted(set(names) - set(MODULES)):
        sys.stderr.write(f"expected benchmarks of {', '.join(MODULES)}; found {', '.join(unknown)}\n")
        return 2
    for name in names or MODULES:
        report(importlib.import_module(f"benchmarks.{name}").run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
