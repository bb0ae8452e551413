"""The one door to Great Expectations: quiet, without telemetry. Import it late, it takes seconds."""

from __future__ import annotations

import logging
import os
import warnings

# Read once, at the first import: nothing about a store leaves this machine.
os.environ["GX_ANALYTICS_ENABLED"] = "false"

# Hundreds of lines about its own decorators, at each import.
logging.getLogger("great_expectations._docs_decorators").setLevel(logging.WARNING)

with warnings.catch_warnings():
    # Great Expectations 1.x imports two standard modules that Python deprecates since 3.11.
    warnings.filterwarnings("ignore", "module 'sre_(constants|parse)' is deprecated", DeprecationWarning)
    import great_expectations as gx
    from great_expectations.checkpoint import Checkpoint
    from great_expectations.checkpoint.actions import ActionContext, ValidationAction
    from great_expectations.checkpoint.checkpoint import CheckpointResult
    from great_expectations.core import ExpectationSuite, ValidationDefinition
    from great_expectations.execution_engine import PandasExecutionEngine, SparkDFExecutionEngine
    from great_expectations.expectations.expectation import MulticolumnMapExpectation
    from great_expectations.expectations.metrics.map_metric_provider import MulticolumnMapMetricProvider
    from great_expectations.expectations.metrics.map_metric_provider.multicolumn_condition_partial import (
        multicolumn_condition_partial,
    )
    from great_expectations.render.view import DefaultJinjaIndexPageView, DefaultJinjaPageView

__all__ = [
    "ActionContext",
    "Checkpoint",
    "CheckpointResult",
    "DefaultJinjaIndexPageView",
    "DefaultJinjaPageView",
    "ExpectationSuite",
    "MulticolumnMapExpectation",
    "MulticolumnMapMetricProvider",
    "PandasExecutionEngine",
    "SparkDFExecutionEngine",
    "ValidationAction",
    "ValidationDefinition",
    "gx",
    "multicolumn_condition_partial",
]
