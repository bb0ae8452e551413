"""Settings of a store, each defined once for the form, the shell's options and the docs. The policy's
settings are elsewhere: :class:`~storage_engine.model.settings.policy.Policy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial

BROKER_SETTINGS = "broker_settings"
"""JSON field of a connection with settings that only some stores need."""
POLICY = "policy"
"""JSON field of a connection with the policy's settings."""
SECTIONS = SECTION_STORE, SECTION_BROKER, SECTION_LAKE, SECTION_POLICY = (
    "Store",
    "Broker",
    "Lake and archive",
    "Policy",
)

OFFLINE, LIVE, ENGINE = MODES = ("offline", "live", "engine")
COMMON_ZONES = (
    "UTC",
    "America/Los_Angeles",
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Hong_Kong",
    "Asia/Kolkata",
    "Asia/Seoul",
    "Asia/Shanghai",
    "Asia/Singapore",
    "Asia/Tokyo",
    "Australia/Sydney",
    "Europe/Berlin",
    "Europe/London",
)
"""Zones that the form proposes. Every other zone of the IANA database is valid as well."""
BROKER_DELETES, WE_DELETE = DELETES = ("broker", "us")
BOUNDED, STRICT = HOLDS = ("bounded", "strict")
TLS_OFF, TLS_ON, TLS_UNVERIFIED = TLS = ("off", "on", "unverified")


class Kind(Enum):
    """Type of a setting's value, by the name of its type in JSON."""

    TEXT = "text"
    PATH = "path"
    CHOICE = "choice"
    FLAG = "true or false"
    WHOLE_NUMBER = "whole number"
    OBJECT = "JSON object"
    TEXT_OR_OBJECT = "text or JSON object"
    ZONE = "IANA time zone"
    ADDRESS = "host:port"
    ADDRESSES = "host:port;…"


@dataclass(frozen=True, slots=True)
class StoreSetting:
    """One setting of a store that a person gives.

    :param name: the setting's key in a connection's extra fields, or in the JSON field ``inside``.
    :param empty: the value that is used where none is given, as the end of a sentence; "" if there is none.
    :param label: label of its field in the connection's form; "" if the form has no such field.
    :param inside: the JSON field that has the setting as a key; "" if the setting has its own field.
    :param field: name of the setting's own field, which the form and older connections use instead of the
        JSON field; "" if that is ``name``.
    :param option: option at the shell; "" if there is none. Each further value of a choice has its own
        option, ``OPTION-VALUE``.
    :param argument: the word for the option's argument.
    :param choices: the values of a choice; the first is the default.
    :param examples: values that the form proposes.
    :param live: whether the setting is only for a running broker.
    :param at_shell: the option's help, if it differs from the connection's help; else "".
    """

    name: str
    kind: Kind
    help: str
    empty: str = ""
    label: str = ""
    section: str = ""
    inside: str = ""
    field: str = ""
    option: str = ""
    argument: str = ""
    choices: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    required: bool = False
    live: bool = False
    at_shell: str = ""

    @property
    def own_field(self) -> str:
        """Return the separate field in which a connection may have the setting."""
        return self.field or self.name

    @property
    def place(self) -> str:
        """Return the recommended place in a connection: the form's field, or a key of a JSON field."""
        return f"{self.inside}.{self.name}" if self.inside and not self.label else self.own_field

    @property
    def in_connection(self) -> str:
        """Return the setting's help for people who write a connection."""
        text = f"Live: {self.help}" if self.live else self.help
        return f"{text} Empty: {self.empty}." if self.empty else text

    @property
    def at_a_shell(self) -> str:
        """Return the setting's help for people who type a command."""
        return self.at_shell or (f"{self.help} Default: {self.empty}." if self.empty else self.help)

    @property
    def usual(self) -> str:
        """Return the value that means the default; "" for texts."""
        if self.kind is Kind.FLAG:
            return "false"
        return self.choices[0] if self.choices else ""

    @property
    def values(self) -> str:
        """Return the permitted values, in words."""
        return ", ".join(self.choices) or self.kind.value


_broker_setting = partial(StoreSetting, inside=BROKER_SETTINGS)

STORE_SETTINGS = (
    StoreSetting(
        "root",
        Kind.PATH,
        "The broker's storePathRootDir, such as /data/store: the path on the worker that this store's tasks "
        "run on.",
        label="Store root",
        section=SECTION_STORE,
        option="STORE",
        required=True,
    ),
    StoreSetting(
        "broker_type",
        Kind.TEXT,
        "The kind of broker that the store belongs to: the name in the broker's package.",
        empty="the broker that comes with this provider",
        at_shell="The kind of broker that the store belongs to; default: recognized by its files.",
        option="--broker-type",
        argument="NAME",
    ),
    StoreSetting(
        "broker_conf",
        Kind.PATH,
        "The broker's own config file, such as /etc/broker/broker.conf.",
        empty="the broker's default settings",
        label="Config file",
        section=SECTION_STORE,
        option="--broker-conf",
        argument="FILE",
    ),
    StoreSetting(
        "mode",
        Kind.CHOICE,
        "offline: the broker is stopped while the store is cleaned. live: the broker keeps running; the "
        "store is held and segments are deleted through it. engine: storage-engine itself writes the store; "
        "that process is asked.",
        label="Mode",
        section=SECTION_BROKER,
        choices=MODES,
        option="--engine",
        at_shell="storage-engine itself writes STORE; the process that writes it is asked.",
    ),
    StoreSetting(
        "broker_address",
        Kind.ADDRESS,
        "host:port of the broker's listen port, such as 10.0.0.1:10911.",
        empty="the name servers are asked each time",
        at_shell="The running broker's listen port. Without this option, --name-servers and --client-config, "
        "the broker has to be stopped.",
        label="Broker address",
        section=SECTION_BROKER,
        option="--broker",
        argument="HOST:PORT",
        live=True,
    ),
    StoreSetting(
        "lake",
        Kind.TEXT_OR_OBJECT,
        "Directory of the store's own lake, such as /lake (SQLite catalog and Parquet files), or properties "
        "of "
        'a PyIceberg catalog, such as {"type": "rest", "uri": "http://catalog:8181"}. Among these, '
        "airflow.s3-conn-id and airflow.catalog-conn-id name connections with credentials.",
        empty="the option lake of [storage_engine]",
        label="Lake",
        section=SECTION_LAKE,
        option="--lake",
        argument="DIRECTORY",
    ),
    StoreSetting(
        "spark_conn_id",
        Kind.TEXT,
        "Connection of the type spark with which Spark jobs are submitted, such as spark_default.",
        empty="no Spark; the tasks archive by themselves, with the same proof",
        label="Spark",
        section=SECTION_LAKE,
        examples=("spark_default",),
    ),
    StoreSetting(
        "spark_from",
        Kind.TEXT,
        "The least work for which a Spark job is started: bytes or segments to archive, such as 2GiB, 1000 "
        "segments, and positions of groups in queues whose lag is measured, such as 1000000 positions. The "
        "task does smaller work itself. A missing part keeps its default; 0: all work is a Spark job.",
        empty="2GiB, 1000 segments, 1000000 positions",
        label="Spark from",
        section=SECTION_LAKE,
    ),
    StoreSetting(
        "agent",
        Kind.OBJECT,
        "The agent on the broker's host from which Spark's executors read segments: its address as host:port "
        "(plain://host:port without TLS), and paths of token_file, ca_file, certificate_file as the worker "
        "sees them.",
        empty="executors see the store's disk",
    ),
    _broker_setting(
        "time_zone",
        Kind.ZONE,
        "IANA time zone of deleteWhen, such as Asia/Shanghai.",
        label="Time zone",
        section=SECTION_STORE,
        examples=COMMON_ZONES,
        option="--time-zone",
        argument="ZONE",
        empty="the time zone of the machine that makes the plan",
    ),
    _broker_setting(
        "overrides",
        Kind.OBJECT,
        "Settings of the broker that take precedence over all others, such as fileReservedTime.",
        option="--set",
        argument="KEY=VALUE",
    ),
    _broker_setting(
        "name_servers",
        Kind.ADDRESSES,
        "Name servers that know the master of broker_name, as host:port; several are separated by ;",
        at_shell="Name servers of the running broker. They know the address of the master of --broker-name.",
        option="--name-servers",
        argument="HOST:PORT;…",
        live=True,
    ),
    _broker_setting(
        "broker_name",
        Kind.TEXT,
        "The broker's brokerName.",
        option="--broker-name",
        argument="NAME",
        live=True,
    ),
    _broker_setting(
        "conn_id",
        Kind.TEXT,
        "Connection with the access key as its login and the secret key as its password. Or a connection of "
        "the type of the broker's client, such as kafka, with the client's settings as its extra.",
        label="Access keys",
        section=SECTION_BROKER,
        at_shell="Sign requests as this user; the secret key is taken from STORAGE_ENGINE_SECRET_KEY.",
        option="--access-key",
        argument="NAME",
        empty="requests are not signed",
        field="broker_conn_id",
        live=True,
    ),
    _broker_setting(
        "client_config",
        Kind.PATH,
        "File with settings of the client library of the broker's kind, such as librdkafka's, one name=value "
        "a line.",
        at_shell="Client library settings for the running broker, one name=value a line.",
        option="--client-config",
        argument="FILE",
        live=True,
    ),
    _broker_setting(
        "tls",
        Kind.CHOICE,
        "Speak TLS to broker and name servers. unverified trusts any certificate.",
        label="TLS",
        section=SECTION_BROKER,
        at_shell="Speak TLS to broker and name servers.",
        option="--tls",
        field="broker_tls",
        choices=TLS,
        live=True,
    ),
    _broker_setting(
        "ca_file",
        Kind.PATH,
        "With TLS, PEM file of the authority that signed the broker's certificate.",
        option="--tls-ca-file",
        argument="FILE",
        empty="the system's authorities",
        field="broker_ca_file",
        live=True,
    ),
    _broker_setting(
        "server_name",
        Kind.TEXT,
        "With TLS, the name that the certificate must have.",
        option="--tls-server-name",
        argument="NAME",
        empty="the host of the address",
        field="broker_server_name",
        live=True,
    ),
    _broker_setting(
        "certificate_file",
        Kind.PATH,
        "With TLS, PEM file of our own certificate and key, for a broker that requires one.",
        option="--tls-certificate-file",
        argument="FILE",
        field="broker_certificate_file",
        live=True,
    ),
    _broker_setting(
        "may_change_settings",
        Kind.FLAG,
        "Permission to set cleanFileForciblyEnable to false on the broker while the store is held.",
        option="--may-change-settings",
        live=True,
    ),
    _broker_setting(
        "hold_hours",
        Kind.WHOLE_NUMBER,
        "How long after its last renewal a hold ends. It must be longer than the step that deletes "
        "segments, which reads their files again.",
        option="--hold-hours",
        argument="HOURS",
        empty="24",
        live=True,
    ),
    _broker_setting(
        "allow_same_disk",
        Kind.FLAG,
        "Permission for lake, journal, reports and temporary files to be on a disk of the broker, although "
        "they can fill it.",
        option="--allow-same-disk",
        live=True,
    ),
    _broker_setting(
        "deletes",
        Kind.CHOICE,
        "Only for a store of Kafka: who deletes. broker: its broker, by the broker's own rules. us: Storage "
        "Engine, which holds the store's topics and deletes proven segments.",
        at_shell="Only for a store of Kafka: hold its topics, and delete proven segments.",
        option="--deletes-us",
        choices=DELETES,
        live=True,
    ),
    _broker_setting(
        "hold",
        Kind.CHOICE,
        "Only for a store of Kafka: how topics are held. bounded: the hold ends by itself; strict (-1): it "
        "never does.",
        at_shell="Only for a store of Kafka: hold its topics by settings of -1. Such a hold never ends by "
        "itself.",
        option="--hold-strict",
        choices=HOLDS,
        live=True,
    ),
    _broker_setting(
        "accept_version",
        Kind.TEXT,
        "An untested release of the broker, such as 5.6.0, beside which proven segments may be deleted. "
        "This permission ends with unmanage.",
        option="--accept-version",
        argument="VERSION",
        live=True,
    ),
    StoreSetting(
        BROKER_SETTINGS,
        Kind.OBJECT,
        "Settings that only some stores need, such as "
        '{"overrides": {"fileReservedTime": "48"}, "hold_hours": 12}.',
        label="More broker settings",
        section=SECTION_BROKER,
    ),
    StoreSetting(
        POLICY,
        Kind.TEXT_OR_OBJECT,
        'Other settings of the policy, such as {"undo_window_hours": 24}, or the name of a policy in the '
        "option policies of [storage_engine].",
        empty="the defaults",
        label="More of the policy",
        section=SECTION_POLICY,
    ),
    StoreSetting(
        "journal_url",
        Kind.TEXT,
        "SQLAlchemy URL of the store's journal.",
        empty="the option journal_url of [storage_engine]; at the shell, a file in the lake's directory",
    ),
    StoreSetting(
        "second_lake",
        Kind.TEXT_OR_OBJECT,
        "A second lake, named in the same way as lake. It is used while the first lake can't be reached. A "
        "proof in either lake counts.",
        empty="the option second_lake of [storage_engine]",
        option="--second-lake",
        argument="DIRECTORY",
    ),
    StoreSetting(
        "report_dir",
        Kind.PATH,
        "Directory that receives the reports of runs.",
        empty="the option report_dir of [storage_engine]; at the shell, reports in the lake's directory",
    ),
    StoreSetting(
        "store_host",
        Kind.TEXT,
        "Host name or machine id of the host with the store's disk; * where every host mounts that disk.",
        empty="the host that read the store first; at the shell, any host",
    ),
    StoreSetting(
        "queue",
        Kind.TEXT,
        "Airflow queue whose workers see the store's disk. A task on another worker fails.",
        empty="any queue",
    ),
)

SETTINGS = {setting.name: setting for setting in STORE_SETTINGS}
"""The settings by name. Each name is unique."""
