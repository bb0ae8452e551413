"""Which Spark connection a store gets when it is set up, and what a person is told of it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from storage_engine.core.extras import SPARK, SPARK_JAVA, SparkPair
from storage_engine.model.settings.store_settings import SETTINGS
from storage_engine.spark.session import has_java

SPARK_CONNECTION = "spark_default"
_OWN_CONNECTION = "storage_engine_spark"
"""Made where the other id is Airflow's, which points at a YARN cluster that nobody has."""
SAME_PROOF = "the tasks archive and measure consumer lag by themselves, with the same proof"


@dataclass(frozen=True, slots=True)
class SparkProposal:
    """
    :param conn_id: that the store's connection names; None: none.
    :param is_new: the connection has to be made.
    :param text: what runs where, or why there is no Spark.
    """

    conn_id: str | None
    is_new: bool
    text: str


def propose_spark(named: str | None, usable: Collection[str], taken: Collection[str]) -> SparkProposal:
    """Propose a Spark connection.

    :param named: by a person; "": none is wanted; None: nothing was said.
    :param usable: ids of connections of the type spark, without Airflow's own that nobody has touched.
    :param taken: ids of all connections that were looked for and are there.
    """
    if named == "":
        return SparkProposal(None, False, f"No Spark, as you say: {SAME_PROOF}.")
    if named is None and (missing := spark_missing()):
        return SparkProposal(None, False, f"No Spark: {missing}. Until then {SAME_PROOF}.")
    new = (
        _OWN_CONNECTION if SPARK_CONNECTION in taken and SPARK_CONNECTION not in usable else SPARK_CONNECTION
    )
    conn_id = named or (SPARK_CONNECTION if SPARK_CONNECTION in usable else next(iter(sorted(usable)), new))
    return SparkProposal(
        conn_id,
        conn_id not in taken and conn_id not in usable,
        f"Archive and consumer lag run as Spark jobs by the connection {conn_id}: large ones, from "
        f"{SETTINGS['spark_from'].empty} on. Less work the tasks do by themselves, with the same proof. The "
        "field spark_from sets another limit; 0: all work.",
    )


def spark_definition(conf: Mapping[str, str]) -> dict[str, object]:
    """Return a connection for Spark on the worker's own machine, as ``airflow connections import`` takes it.

    :param conf: settings of Spark, such as ``spark.eventLog.dir``.
    """
    definition: dict[str, object] = {"conn_type": "spark", "host": "local[*]"}
    return {**definition, "extra": json.dumps(dict(conf))} if conf else definition


def wrapped(text: str) -> str:
    """Return a text for a terminal, without breaking what is to be typed."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def spark_missing() -> str:
    """Return why no Spark can start here, with what installs it; "" where one can."""
    if not SPARK.is_installed:
        return f"Spark isn't installed here. {SPARK.install}, and run this again"
    pair = SparkPair.installed()
    if pair.is_unequal:
        return f"{pair.what}. {pair.install}, and run this again"
    if not has_java():
        return f"no Java 17 or 21 was found here. {SPARK_JAVA.install} or set JAVA_HOME, and run this again"
    return ""
