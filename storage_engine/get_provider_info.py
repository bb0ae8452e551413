"""The provider's description for Airflow: entry point ``apache_airflow_provider``.

Every Airflow process imports this module, so it imports only the standard library and the tables of settings.
"""

from __future__ import annotations

from typing import Any

from storage_engine.model.settings.policy import Policy, Setting, settings_of
from storage_engine.model.settings.store_settings import (
    BROKER_SETTINGS,
    POLICY,
    SECTION_POLICY,
    SECTIONS,
    STORE_SETTINGS,
    Kind,
    StoreSetting,
)

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
            _modules(
                "storage_engine.operators.approval",
                "storage_engine.operators.lake_jobs",
                "storage_engine.operators.retention",
                "storage_engine.operators.spark_job",
            )
        ],
        "sensors": [_modules("storage_engine.sensors.cleanup")],
        "triggers": [_modules("storage_engine.triggers.cleanup")],
        "extra-links": ["storage_engine.links.StorageEngineReportLink"],
        # The scheme of our events; nothing resolves such a URI. No notifiers and no message queues are here,
        # and the plugin has its own entry point.
        "asset-uris": [{"schemes": ["x-storage-engine"], "handler": None}],
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
        "conn-fields": form_fields(),
    }


def form_fields() -> dict[str, dict[str, Any]]:
    """Return the fields of the connection's form in their order, section by section."""
    fields = [(row.section, row.own_field, _store_field(row)) for row in STORE_SETTINGS if row.label]
    fields += [(SECTION_POLICY, row.name, _policy_field(row)) for row in settings_of(Policy) if row.label]
    # The fields for all further settings come last in their section.
    fields.sort(key=lambda field: (SECTIONS.index(field[0]), field[1] in (BROKER_SETTINGS, POLICY)))
    return {
        name: {**field, "schema": {**field["schema"], "section": section}} for section, name, field in fields
    }


def _store_field(setting: StoreSetting) -> dict[str, Any]:
    keys = ", ".join(row.name for row in STORE_SETTINGS if row.inside == setting.name and not row.label)
    description = f"{setting.in_connection} Keys: {keys}." if keys else setting.in_connection
    return {"label": setting.label, "description": description, "schema": _schema(setting)}


def _schema(setting: StoreSetting) -> dict[str, Any]:
    if setting.required:
        return {"type": "string", "minLength": 1}
    match setting.kind:
        case Kind.CHOICE:
            return {"type": ["string", "null"], "enum": list(setting.choices), "default": setting.choices[0]}
        case Kind.OBJECT:
            return {"type": ["object", "null"], "default": None}
        case Kind.TEXT_OR_OBJECT:
            return {"type": ["string", "object", "null"], "default": None}
        case _:
            proposed = {"examples": list(setting.examples)} if setting.examples else {}
            return {"type": ["string", "null"], **proposed}


def _policy_field(setting: Setting) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": ["integer", "null"], "minimum": setting.minimum}
    if setting.choices:
        # Empty by default, so that a field that nobody filled in doesn't contradict a named policy.
        choices, usual = [None, *setting.choices], f"default ({setting.default_text})"
        schema = {"type": ["string", "null"], "enum": choices, "values_display": {"None": usual}}
    return {"label": setting.label, "description": setting.help, "schema": {**schema, "default": None}}


def _option(description: str, example: str, default: str | None, **more: Any) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": _VERSION_ADDED,
        "type": "string",
        "example": example,
        "default": default,
        **more,
    }


_CONFIG_SECTION = {
    "description": "The managed stores, and the places of their records.",
    "options": {
        "stores": _option(
            "The managed stores. Each has its own DAGs. Give connection ids separated by commas, or a JSON "
            "list of objects. An object has conn_id and, where it differs from the default, schedule, "
            "queue, executor, pool, approvers and lake. lake is the lake's name in the id of its "
            "maintenance DAG.\n",
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
            "connections that name none. Empty: ``storage_engine/lake`` in AIRFLOW_HOME. Put credentials "
            "into connections, and name these with airflow.s3-conn-id and airflow.catalog-conn-id.\n",
            '{"type": "rest", "uri": "http://catalog:8181"}',
            "",
        ),
        "second_lake": _option(
            "The lake where segments are archived while the first lake can't be reached, in the form of "
            "``lake``, for connections that name no second lake. Empty: no second lake.\n",
            "/mnt/other/lake",
            "",
        ),
        "policies": _option(
            "JSON object of policies by name, for connections whose policy names one.\n",
            '{"orders": {"lag_policy": "block", "minimum_retention_hours": 24}}',
            "",
        ),
        "kafka_stores": _option(
            "The stores in ``stores`` that are nodes of Kafka, in the same form. Each has the DAG "
            "``storage_kafka_log_manager__STORE``. Empty: none.\n",
            "kafka_1,kafka_2",
            "",
        ),
        "on_failure_callback": _option(
            "Full name of the callback for a failed task that needs a person: an alarm, or a cleanup that "
            "did not end well. It is a notifier, a function that accepts the context, or a list of these, "
            "in a module that Airflow's processes can import. Empty: none.\n",
            "company_alerts.ON_FAILURE",
            "",
        ),
        "alarm_notifiers": _option(
            "Full name of the callback that is called once when a store's alarm begins, and once when the "
            "alarm has ended. It is a notifier, a function that accepts the context, or a list of these. "
            "Templates have ``alarm``. Empty: none.\n",
            "company_alerts.NOTIFIERS",
            "",
        ),
        "dag_tab": _option(
            "Whether a DAG has a tab with the console's page of its store. Airflow before 3.4 shows the "
            "tab on all DAGs, including those that manage no store.\n",
            "False",
            "True",
            type="boolean",
        ),
        "report_dir": _option(
            "Directory that receives the reports of every run, for connections that name none. Empty: "
            "``storage_engine/reports`` in AIRFLOW_HOME.\n",
            "/var/lib/storage-engine/reports",
            "",
        ),
    },
}
