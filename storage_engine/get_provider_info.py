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
            "overrides": {
                "label": "Broker settings",
                "description": "JSON object of broker settings that win over broker.conf, such as "
                '{"fileReservedTime": "48"}.',
                "schema": {"type": ["object", "null"], "default": None},
            },
            "time_zone": _text(
                "Time zone",
                "IANA name of the zone in which the broker reads deleteWhen; empty: the worker's own.",
            ),
            **_BROKER_FIELDS,
            "lake_directory": _text(
                "Lake directory",
                "Directory of an embedded lake (SQLite catalog and Parquet files); empty: as the "
                "[storage_engine] lake option says. Leave empty when catalog properties are given.",
            ),
            "lake_catalog": _text("Lake catalog", "Name of the Iceberg catalog, when properties are given."),
            "lake_properties": {
                "label": "Lake catalog properties",
                "description": "JSON object of PyIceberg catalog properties: type, uri, warehouse; "
                "airflow.s3-conn-id and airflow.catalog-conn-id name the connections with the credentials.",
                "schema": {"type": ["object", "null"], "default": None},
            },
            "second_lake": _text(
                "Second lake",
                "Takes over while the lake can't be reached: a directory, or a JSON object of PyIceberg "
                "catalog properties; empty: as the [storage_engine] second_lake option says.",
            ),
            "journal_url": _text(
                "Journal URL",
                "SQLAlchemy URL without its password, which goes into Journal password; empty: as the "
                "[storage_engine] journal_url option says.",
            ),
            "report_dir": _text("Report directory", "Empty: as the [storage_engine] report_dir option says."),
            "policy": {
                "label": "Policy",
                "description": 'JSON object of what we do with the store, such as {"lag_policy": "block"}, '
                "or the name of a policy in [storage_engine] policies; empty: the defaults.",
                "schema": {"type": ["object", "string", "null"], "default": None},
            },
            "queue": _text(
                "Queue", "Airflow queue of the workers that see the store's disk; empty: the default queue."
            ),
            "store_host": _text(
                "Store host",
                "Host name or machine id of the only host that may look at the store; * where every host "
                "mounts the same disk; empty: the host on which it was first seen.",
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


def _number(label: str, description: str, minimum: int = 1) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": ["integer", "null"], "minimum": minimum, "default": None},
    }


def _choice(label: str, values: list[str], description: str) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": "string", "enum": values, "default": values[0]},
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


def _flag(label: str, description: str) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": "boolean", "default": False},
    }


_BROKER_FIELDS = {
    "mode": _choice(
        "Mode",
        ["offline", "beside"],
        "offline: the broker is stopped while the store is cleaned. beside: it runs on; the store is held "
        "and released through it.",
    ),
    "broker_address": _text(
        "Broker address",
        "Beside: host:port of the master's listen port; empty: name servers are asked for it each time.",
    ),
    "name_servers": _text("Name servers", "Beside: host:port, several separated by semicolons."),
    "broker_name": _text("Broker name", "Beside: the broker's brokerName; needed with name servers alone."),
    "broker_conn_id": _text(
        "Broker credentials",
        "Beside: a connection whose login and password are the broker's access key and secret key; empty: "
        "requests are not signed.",
    ),
    "broker_tls": _choice(
        "Broker TLS",
        ["off", "on", "unverified"],
        "Beside: whether broker and name servers are spoken to by TLS; unverified trusts any certificate.",
    ),
    "broker_ca_file": _text(
        "Broker CA file", "PEM file of who signed the broker's certificate; empty: the system's authorities."
    ),
    "broker_server_name": _text(
        "Broker server name", "Name that the broker's certificate must bear; empty: the address's host."
    ),
    "broker_certificate_file": _text(
        "Own certificate", "PEM file of our own certificate and key, for a broker that wants one."
    ),
    "may_change_settings": _flag(
        "May change settings",
        "Beside: cleanFileForciblyEnable may be set to false on the broker while the store is held. Without "
        "it nothing is held where the disk comes near the broker's forced cleanup.",
    ),
    "hold_hours": _number(
        "Hold (hours)",
        "Beside: a hold that nobody renews for so long ends by itself, and the broker deletes by its own "
        "rules again; empty: 24.",
    ),
    "allow_same_disk": _flag(
        "Allow the broker's disk",
        "Beside: lake, journal, reports and temporary files may lie on a disk of the broker, which they can "
        "fill.",
    ),
}


_CONFIG_SECTION = {
    "description": "Which stores are managed, and where what is managed about them is kept.",
    "options": {
        "stores": _option(
            "Connection ids of the stores that the ``storage_retention`` DAG takes care of, separated by "
            "commas.\n",
            "orders_broker_a,orders_broker_b",
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
