"""What Airflow learns about this provider: entry point ``apache_airflow_provider``.

Imported by every Airflow process, so it imports nothing itself.
"""

from __future__ import annotations

from typing import Any

_INTEGRATION = "Storage Engine"
_VERSION_ADDED = "0.1.0"


def get_provider_info() -> dict[str, Any]:
    """Return metadata that fits ``airflow/provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-storage-engine",
        "name": _INTEGRATION,
        "description": "Archive, prove, then delete: retention of message-broker storage.\n",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://rocketmq.apache.org/docs/",
                "tags": ["service"],
            }
        ],
        "hooks": [_modules("storage_engine.hooks.storage_engine")],
        "operators": [
            _modules("storage_engine.operators.retention", "storage_engine.operators.spark_job"),
        ],
        "sensors": [_modules("storage_engine.sensors.cleanup")],
        "triggers": [_modules("storage_engine.triggers.cleanup")],
        "connection-types": [_connection_type()],
        "config": {"storage_engine": _CONFIG_SECTION},
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": list(names)}


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "storage_engine",
        "hook-name": _INTEGRATION,
        "hook-class-name": "storage_engine.hooks.storage_engine.StorageEngineHook",
        "ui-field-behaviour": {
            "hidden-fields": ["host", "port", "login", "schema"],
            "relabeling": {"password": "Journal password"},
            "placeholders": {"password": "only when the journal's URL has a user but no password"},
        },
        "conn-fields": {
            "root": _text(
                "Store root",
                "The broker's storePathRootDir, as seen on the worker that this store's tasks run on.",
                required=True,
            ),
            "broker_type": _text(
                "Broker type",
                "The kind of broker, by the name that its package gives it; empty: the one that comes with "
                "this provider.",
            ),
            "broker_conf": _text(
                "broker.conf", "The broker's own config file; empty: the broker's default settings."
            ),
            "mode": {
                "label": "Mode",
                "description": "offline: the broker is stopped while the store is cleaned. live: it runs on; "
                "the store is held and released through it.",
                "schema": {"type": "string", "enum": ["offline", "live"], "default": "offline"},
            },
            "broker_address": _text(
                "Broker address",
                "Live: host:port of the master's listen port; empty: the name servers among broker_settings "
                "are asked for it each time.",
            ),
            "lake": _text_or_json(
                "Lake",
                "Directory of an embedded lake (SQLite catalog and Parquet files), or a JSON object of "
                "PyIceberg catalog properties: type, uri, warehouse; airflow.s3-conn-id and "
                "airflow.catalog-conn-id name the connections with the credentials. Empty: as the "
                "[storage_engine] lake option says.",
            ),
            "broker_settings": _json(
                "Broker settings",
                'JSON object: time_zone of deleteWhen; overrides, such as {"fileReservedTime": "48"}, which '
                "win over broker.conf; live also name_servers, broker_name, conn_id (access key and secret "
                "key), tls, may_change_settings, hold_hours, allow_same_disk.",
            ),
            "policy": _text_or_json(
                "Policy",
                'JSON object of what we do with the store, such as {"lag_policy": "block"}, or the name of a '
                "policy in [storage_engine] policies; empty: the defaults.",
            ),
            "spark_conn_id": _text(
                "Spark connection",
                "Connection that Spark jobs are submitted with; empty: the tasks archive by themselves.",
            ),
        },
    }


def _text(label: str, description: str, *, required: bool = False) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": "string", "minLength": 1} if required else {"type": ["string", "null"]},
    }


def _json(label: str, description: str) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": ["object", "null"], "default": None},
    }


def _text_or_json(label: str, description: str) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": ["string", "object", "null"], "default": None},
    }


def _option(
    description: str, example: str, default: str | None, *, sensitive: bool = False
) -> dict[str, Any]:
    option = {
        "description": description,
        "version_added": _VERSION_ADDED,
        "type": "string",
        "example": example,
        "default": default,
    }
    return {**option, "sensitive": True} if sensitive else option


_CONFIG_SECTION = {
    "description": "Which stores are managed, and where what is managed about them is kept.",
    "options": {
        "stores": _option(
            "The stores that are managed, each by DAGs of its own: connection ids separated by commas, or a "
            "JSON list of objects with conn_id and, where it differs from the usual, schedule, queue, pool "
            "and lake, which names the store's lake in the id of its maintenance DAG.\n",
            '[{"conn_id": "orders_a", "queue": "host-a", "schedule": "*/5 * * * *", "lake": "orders"}]',
            "storage_engine_default",
        ),
        "journal_url": _option(
            "SQLAlchemy URL of the journal for connections that name none: SQLite on one host, Postgres "
            "across hosts. Empty: ``storage_engine/journal.db`` in AIRFLOW_HOME.\n",
            "postgresql+psycopg://storage_engine:secret@db/storage_engine",
            "",
            sensitive=True,
        ),
        "lake": _option(
            "Directory of the embedded lake, or a JSON object of PyIceberg catalog properties, for "
            "connections that name none. Empty: ``storage_engine/lake`` in AIRFLOW_HOME.\n",
            '{"type": "rest", "uri": "http://catalog:8181"}',
            "",
            sensitive=True,
        ),
        "second_lake": _option(
            "As ``lake``: where segments are archived while the lake can't be reached, for connections that "
            "name none. Empty: nowhere.\n",
            "/mnt/other/lake",
            "",
            sensitive=True,
        ),
        "policies": _option(
            "JSON object of policies by name, for connections whose policy names one.\n",
            '{"orders": {"lag_policy": "block", "minimum_retention_hours": 24}}',
            "",
        ),
        "report_dir": _option(
            "Directory that receives the reports of every run, for connections that name none. Empty: "
            "``storage_engine/reports`` in AIRFLOW_HOME.\n",
            "/var/lib/storage-engine/reports",
            "",
        ),
    },
}
