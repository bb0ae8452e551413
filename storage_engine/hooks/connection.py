"""Conversion of an Airflow connection's fields to a ManagedStore. Pure: no Airflow, no input or output.

The fields of the connection's form are defined in :mod:`storage_engine.model.settings.store_settings`.
A lake's properties may name Airflow connections with its credentials. These are looked up when a task runs.
So credentials are in no DAG, no rendered field and no XCom.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from storage_engine.brokers import broker_names, client_connection_of, default_broker, find_broker
from storage_engine.core.wording import did_you_mean, meant_zone
from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.broker.live import LiveBroker, live_broker
from storage_engine.model.settings.policy import Policy, SparkFrom, settings_of
from storage_engine.model.settings.store_settings import (
    ENGINE,
    LIVE,
    MODES,
    POLICY,
    SETTINGS,
    STORE_SETTINGS,
    Kind,
    StoreSetting,
)
from storage_engine.retention.store.managed_store import ManagedStore

PAGE = "connection"
"""Page of the documentation that describes all fields."""
ABSOLUTE_PATH = "an absolute path, which begins with /"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a setting in a connection. The setting is a key of a JSON field.

    :param field: the separate field that may have the setting instead.
    :param in_form: whether the form has the separate field. If not, only older connections use it.
    """

    inside: str
    field: str
    usual: str = ""
    in_form: bool = False


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed access to a connection's extra fields.

    :param source: the owner of the fields, for messages, such as ``connection orders``.
    :param places: places of settings that are in JSON fields, by name. Any other setting is a separate field.
    """

    source: str
    extra: Mapping[str, Any]
    places: Mapping[str, Place] = field(default_factory=dict)

    def error(self, name: str, expected: str, found: object, hint: str = "") -> BadInputError:
        return self._error(self.shown(name), expected, found, hint)

    def value(self, name: str) -> Any:
        """Return a setting's value; None if it is empty.

        :raises BadInputError: the separate field has a value, and the JSON field has a different one.
        """
        place = self.places.get(name)
        if place is None:
            value = self.extra.get(name)
            return None if value == "" else value
        outer = self.extra.get(place.field)
        outer = None if outer == "" else outer
        inside = self._inside(place.inside).get(name)
        if inside is None or inside == "":
            return outer
        if not _has_same_value(outer, inside, place.usual):
            raise self._error(place.field, f"no value, because {place.inside} has {name} = {inside}", outer)
        return inside

    def in_old_places(self) -> dict[str, dict[str, Any]]:
        """Return settings in separate fields of an older connection, by JSON field, without defaults."""
        by_group: dict[str, dict[str, Any]] = {}
        for name, place in self.places.items():
            value = self.extra.get(place.field)
            is_default = value in (None, "", {}) or str(value).strip().lower() == place.usual
            if not is_default and not place.in_form:
                by_group.setdefault(place.inside, {})[name] = value
        return by_group

    def check_keys(self, known: Sequence[str]) -> None:
        """Make sure that neither the connection nor its JSON fields have an unknown key.

        A setting under a wrong name would have no effect.

        :param known: the fields that a connection may have, besides the fields of ``places``.
        :raises BadInputError: a key is unknown. The error names the most similar known key.
        """
        fields = [*known, *(place.field for place in self.places.values())]
        for name in self.extra:
            place = self.places.get(name)
            if name not in fields and self.extra[name] not in (None, ""):
                if place is None:
                    raise self._unknown(name, fields)
                raise self._error(name, f"{place.field}, or {name} inside {place.inside}", name)
        for group in dict.fromkeys(place.inside for place in self.places.values()):
            inside = [name for name, place in self.places.items() if place.inside == group]
            for key in self._inside(group):
                if key not in inside:
                    raise self._unknown(f"{group}.{key}", inside)

    def read(self, setting: StoreSetting) -> Any:
        """Return a setting's value in the type of its kind; None if a text, number or choice is empty.

        :raises BadInputError: the value doesn't have this type.
        """
        name = setting.name
        match setting.kind:
            case Kind.CHOICE:
                return self.choice(name, setting.choices)
            case Kind.FLAG:
                return self.flag(name)
            case Kind.WHOLE_NUMBER:
                return self.number(name)
            case Kind.OBJECT:
                return self.mapping(name)
            case Kind.ZONE:
                return self.zone(name)
            case Kind.ADDRESS | Kind.ADDRESSES:
                return self.addresses(name, several=setting.kind is Kind.ADDRESSES)
            case Kind.PATH:
                return self.path(name, required=setting.required) or None
            case _:
                return self.text(name, required=setting.required) or None

    def text(self, name: str, *, required: bool = False) -> str:
        value = self.value(name)
        if value is None:
            if required:
                raise self.error(name, "a value", value)
            return ""
        if not isinstance(value, str):
            raise self.error(name, "text", value)
        return value.strip()

    def path(self, name: str, *, required: bool = False) -> str:
        """Return an absolute path, or "". Tasks may start in any directory, so a relative path is refused."""
        text = self.text(name, required=required)
        if text and not text.startswith("/"):
            raise self.error(name, ABSOLUTE_PATH, text)
        return text

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        value = self.text(name) or allowed[0]
        if value not in allowed:
            raise self.error(name, f"one of {', '.join(allowed)}", value)
        return value

    def flag(self, name: str) -> bool:
        """Return whether a box is ticked. Texts are read as well, because a connection may come as a URI."""
        value = self.value(name)
        if value is None:
            return False
        if str(value).lower() not in ("true", "false"):
            raise self.error(name, "true or false", value)
        return str(value).lower() == "true"

    def number(self, name: str) -> int | None:
        """Return a whole number of at least 1; None if the field is empty."""
        value = self.value(name)
        if value is None:
            return None
        try:
            number = int(str(value))
        except ValueError:
            number = 0
        if number < 1:
            raise self.error(name, "a whole number above 0", value)
        return number

    def zone(self, name: str) -> str | None:
        """Return the name of an IANA time zone; None if the field is empty."""
        text = self.text(name)
        try:
            return ZoneInfo(text).key if text else None
        except (KeyError, OSError, ValueError):
            expected = "an IANA time zone such as Asia/Shanghai"
            raise self.error(name, expected, text, meant_zone(text)) from None

    def addresses(self, name: str, *, several: bool = False) -> str:
        """Return addresses as ``host:port``, or "". If several are allowed, ``;`` separates them."""
        text = self.text(name)
        expected = "host:port, several separated by ;" if several else "host:port"
        for address in filter(None, text.split(";") if several else [text]):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
                raise self.error(name, f"{expected}, as in 10.0.0.1:10911", text)
        return text

    def mapping(self, name: str) -> dict[str, str]:
        """Return an object of texts. The form stores it as JSON text or as an object; both are read."""
        values = self._object(self.shown(name), self.value(name))
        return {key: item if isinstance(item, str) else json.dumps(item) for key, item in values.items()}

    def _inside(self, group: str) -> dict[str, Any]:
        return self._object(group, self.extra.get(group))

    def _object(self, field: str, value: Any) -> dict[str, Any]:
        if isinstance(value, str) and value.strip():
            try:
                value = json.loads(value)
            except ValueError:
                raise self._error(field, "a JSON object", "something else") from None
        if not value:
            return {}
        if not isinstance(value, dict):
            raise self._error(field, "a JSON object", type(value).__name__)
        return {str(key): item for key, item in value.items()}

    def shown(self, name: str) -> str:
        """Return the name of the field that has a setting's value, or of the field for a new value."""
        place = self.places.get(name)
        if place is None:
            return name
        is_inside = self._inside(place.inside).get(name) not in (None, "")
        has_own = self.extra.get(place.field) not in (None, "")
        return place.field if not is_inside and (has_own or place.in_form) else f"{place.inside}.{name}"

    def _unknown(self, field: str, names: Sequence[str]) -> BadInputError:
        key = field.rpartition(".")[2]
        hint = did_you_mean(key, names)
        expected = "a known name" if hint else f"one of {', '.join(sorted({*names}))}"
        return self._error(field, expected, key, hint)

    def _error(self, field: str, expected: str, found: object, hint: str = "") -> BadInputError:
        return BadInputError(
            f"{self.source}: field {field}: expected {expected}, found {found!r}.{hint} Nothing was changed.",
            page=PAGE,
        )


def _has_same_value(old: Any, new: Any, usual: str) -> bool:
    """Return whether an old field is empty or default, or has the same value as the new field.

    :param usual: the setting's default; "" for a text or an object. Unless it is "", the case of letters is
        ignored.
    """
    before, now = (json.dumps(_parse_value(value), sort_keys=True) for value in (old, new))
    if usual:
        before, now = before.lower(), now.lower()
    return before in (now, json.dumps(_parse_value(usual)).lower(), "null", '""', "{}")


def _parse_value(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value.strip()


_CATALOG_NAME = "storage_engine"
_TYPED_URIS = ("http", "thrift", "sqlite", "postgresql")
"""Beginnings of a catalog's URI from which PyIceberg knows the catalog's type."""
CATALOG_NAME = "name"
"""Key among a lake's properties: the name of its Iceberg catalog."""

AGENT_FILES = ("token_file", "ca_file", "certificate_file")
"""Keys of the field ``agent``, besides its address."""

_POLICY_SETTINGS = settings_of(Policy)
PLACES = {
    **{
        setting.name: Place(setting.inside, setting.own_field, setting.usual, bool(setting.label))
        for setting in STORE_SETTINGS
        if setting.inside
    },
    **{row.name: Place(POLICY, row.name, row.default_text, bool(row.label)) for row in _POLICY_SETTINGS},
}
"""Places of the settings that are keys of a JSON field, by setting name."""

_OLDER_LAKE = ("lake_directory", "lake_properties", "lake_catalog")
_FIELDS = (*(setting.name for setting in STORE_SETTINGS if not setting.inside), *_OLDER_LAKE)
"""Fields that a connection may have, besides the fields of ``PLACES``."""
BESIDE = "beside"
"""Value of the setting mode in older connections. It means :data:`LIVE`."""
S3_CONNECTION = "airflow.s3-conn-id"
"""Property of a lake: the ``aws`` connection with the credentials of its object store."""
CATALOG_CONNECTION = "airflow.catalog-conn-id"
"""Property of a lake: the ``postgres``, ``http`` or ``iceberg`` connection of its catalog."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values of the ``[storage_engine]`` section, for fields that a connection leaves empty.

    :param home: AIRFLOW_HOME, with journal, lake and reports if neither connection nor section sets them.
    :param lake: a directory, or a JSON object of catalog properties.
    :param second_lake: a directory or a JSON object, as for ``lake``, or "" for no second lake.
    :param policies: a JSON object of policies by name.
    """

    home: str
    journal_url: str = ""
    lake: str = ""
    report_dir: str = ""
    second_lake: str = ""
    policies: str = ""


def managed_store(
    conn_id: str, extra: Mapping[str, Any], password: str | None, defaults: Defaults, *, source: str = ""
) -> ManagedStore:
    """Return the store that a connection describes.

    :param extra: the connection's extra fields, by names of ``STORE_SETTINGS`` or of older connections.
    :param password: the journal's password. It is put into the journal's URL.
    :param source: the owner of the fields in messages, if they don't come from a connection.
    :raises BadInputError: a field is missing, contradicts another or has a wrong type. The error names it.
    """
    source = source or f"connection {conn_id}"
    read = Fields(source, {**extra, POLICY: _policy_object(source, extra, defaults)}, PLACES)
    read.check_keys(_FIELDS)
    _spark_from(source, extra)
    _agent(read)
    directory = Path(defaults.home) / "storage_engine"
    return ManagedStore(
        name=conn_id,
        root=read.path("root", required=True),
        broker=(broker := _broker_type(read)),
        broker_conf=read.path("broker_conf") or None,
        overrides=_overrides(read, broker),
        time_zone=read.zone("time_zone"),
        lake=_lake(read, defaults, directory),
        journal_url=_journal_url(read, password, defaults, directory),
        report_dir=read.path("report_dir")
        or _absolute(defaults.report_dir, "report_dir")
        or str(directory / "reports"),
        policy=Policy(**{row.name: row.read(read.value(row.name), read.error) for row in _POLICY_SETTINGS}),
        second_lake=_lake_of(read, "second_lake", defaults.second_lake),
        host=read.text("store_host") or None,
        live=broker_of_fields(read, client_connection_of(broker)),
        named=True,
        engine=read.text("mode") == ENGINE,
    )


def moved_fields(extra: Mapping[str, Any]) -> str:
    """Return where settings of an older connection belong now, or "" if none is in an old place."""
    by_group = Fields("", extra, PLACES).in_old_places()
    moves = [f"{group} = {json.dumps(values)}" for group, values in by_group.items()]
    # Their values may be secrets.
    moves += [f"lake = the value of {name}" for name in _OLDER_LAKE if extra.get(name) not in (None, "", {})]
    moves += [f"mode = {LIVE} (instead of {BESIDE})"] if extra.get("mode") == BESIDE else []
    old = "Some settings are in old fields. They still work, but move them to the new fields"
    return f"{old}: {'; '.join(moves)}." if moves else ""


def _policy_object(source: str, extra: Mapping[str, Any], defaults: Defaults) -> Any:
    """Return a connection's policy. If the connection names a policy of the section, return that policy.

    :raises BadInputError: the section has no policy of this name.
    """
    policy = extra.get(POLICY)
    if not isinstance(policy, str) or not policy.strip() or policy.lstrip().startswith("{"):
        return policy
    try:
        policies = json.loads(defaults.policies or "{}")
    except ValueError as error:
        raise BadInputError(
            f"[storage_engine] policies: expected a JSON object of policies by name: {error}. Nothing was "
            "changed. Correct the option.",
            page="retention",
        ) from None
    if not isinstance(policies, dict) or not isinstance(policies.get(policy.strip()), dict):
        names = ", ".join(sorted(policies)) if isinstance(policies, dict) else ""
        expected = f"a JSON object, or a name in [storage_engine] policies ({names})"
        raise Fields(source, extra).error(
            POLICY, expected, policy, did_you_mean(policy.strip(), policies or ())
        )
    return policies[policy.strip()]


def _broker_type(read: Fields) -> str:
    """Return the name of the store's broker; the default broker if the connection names none."""
    name = read.text("broker_type") or default_broker()
    if name not in broker_names():
        expected = f"a broker that is installed ({', '.join(broker_names())})"
        raise read.error("broker_type", expected, name, did_you_mean(name, broker_names()))
    return name


def _overrides(read: Fields, broker: str) -> dict[str, str]:
    """Return the broker's settings in the connection.

    :raises BadInputError: a setting has no effect here. The error names the closest setting that has one.
    """
    settings = read.mapping("overrides")
    names = find_broker(broker).settings.known if settings else None
    for name in sorted(set() if names is None else settings.keys() - names):
        expected = "a setting of the broker that has an effect here"
        raise read.error("overrides", expected, name, did_you_mean(name, names or ()))
    return settings


def store_queue(extra: Mapping[str, Any]) -> str | None:
    """Return the Airflow queue whose workers see the store's disk, or None if any worker sees it."""
    return str(extra.get("queue") or "").strip() or None


def spark_connection(extra: Mapping[str, Any]) -> str | None:
    """Return the connection that submits a store's Spark jobs, or None if its tasks do the work."""
    return str(extra.get("spark_conn_id") or "").strip() or None


def spark_from_of(conn_id: str, extra: Mapping[str, Any]) -> SparkFrom:
    """Return the least amounts of work for which a store's connection uses Spark jobs.

    :raises BadInputError: the field's text can't be read.
    """
    return _spark_from(f"connection {conn_id}", extra)


def agent_of(conn_id: str, extra: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of the agent that serves a store to executors; empty if the connection names none.

    :raises BadInputError: the field has no address, an unknown key, or a path that isn't absolute.
    """
    return _agent(Fields(f"connection {conn_id}", extra))


def _agent(read: Fields) -> dict[str, str]:
    agent = read.mapping("agent")
    if agent and (not agent.get("address") or agent.keys() - {"address", *AGENT_FILES}):
        expected = f"address, and no other keys than {', '.join(AGENT_FILES)}"
        raise read.error("agent", expected, ", ".join(sorted(agent)))
    for name in AGENT_FILES:
        if not agent.get(name, "/").startswith("/"):
            raise read.error(f"agent.{name}", ABSOLUTE_PATH, agent[name])
    return agent


def _spark_from(source: str, extra: Mapping[str, Any]) -> SparkFrom:
    read = Fields(source, extra)
    value = read.value("spark_from")
    try:
        return SparkFrom() if value is None else SparkFrom.parse(str(value))
    except ValueError:
        expected = f"0, or one or more parts of {SETTINGS['spark_from'].empty}"
        raise read.error("spark_from", expected, value) from None


def broker_connection(conn_id: str, extra: Mapping[str, Any]) -> str | None:
    """Return the connection with the two keys of a running broker, or None if requests are not signed."""
    return Fields(f"connection {conn_id}", extra, PLACES).text("conn_id") or None


def _lake(read: Fields, defaults: Defaults, directory: Path) -> LakeConfig:
    is_given = any(_place_or_properties(read, "lake"))
    older_place, older_properties = read.text("lake_directory"), read.mapping("lake_properties")
    if older_properties and older_place:
        raise read.error("lake_directory", "empty when lake_properties are given", older_place)
    if is_given and (older_place or older_properties):
        raise read.error(
            "lake_directory" if older_place else "lake_properties", "empty, because lake is given", "a value"
        )
    if older_properties:
        return LakeConfig(name=read.text("lake_catalog") or _CATALOG_NAME, properties=older_properties)
    lake = _lake_of(read, "lake", defaults.lake, older_place)
    return lake or LakeConfig.local(str(directory / "lake"))


def _lake_of(read: Fields, field: str, default: str, older_place: str = "") -> LakeConfig | None:
    """Return the lake that a field names, or else the section's option. None if neither names a lake."""
    place, properties = _place_or_properties(read, field)
    if properties:
        return _catalog(read, field, properties)
    place, name = place or older_place, read.text("lake_catalog") or _CATALOG_NAME
    if not place and default.lstrip().startswith("{"):
        return LakeConfig(name=name, properties=_catalog_properties(default, field))
    place = place or _absolute(default, field)
    return LakeConfig.local(place) if place else None


def _catalog(read: Fields, field: str, properties: Mapping[str, str]) -> LakeConfig:
    """Return the lake with these catalog properties. One of the properties may be the catalog's name.

    :raises BadInputError: the properties don't show the catalog's place.
    """
    settings = {key: value for key, value in properties.items() if key != CATALOG_NAME}
    has_type = settings.keys() & {"type", "py-catalog-impl", CATALOG_CONNECTION}
    if settings and not has_type and not settings.get("uri", "").startswith(_TYPED_URIS):
        # Only keys are shown, because values may be secrets.
        expected = "a property with the catalog's type, such as sql or rest"
        raise read.error(field, expected, ", ".join(sorted(settings)))
    if not settings:
        raise read.error(field, "a catalog's properties, such as type, uri, warehouse", dict(properties))
    name = properties.get(CATALOG_NAME) or read.text("lake_catalog") or _CATALOG_NAME
    return LakeConfig(name=name, properties=settings)


def _place_or_properties(read: Fields, name: str) -> tuple[str, dict[str, str]]:
    """Return a lake's directory, or its catalog's properties. Both are empty if neither is given."""
    value = read.value(name)
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        return read.path(name), {}
    return "", read.mapping(name)


def _absolute(path: str, option: str) -> str:
    """Return a directory of ``[storage_engine]``.

    :raises BadInputError: the path isn't absolute.
    """
    if path and not path.startswith("/"):
        raise BadInputError(
            f"[storage_engine] {option}: expected {ABSOLUTE_PATH}, found {path!r}. Nothing was changed.",
            page=PAGE,
        )
    return path


def _catalog_properties(text: str, option: str) -> dict[str, str]:
    """Return an option as catalog properties. Errors never quote it, because it may contain secrets."""
    try:
        properties = json.loads(text)
    except ValueError as error:
        raise BadInputError(
            f"[storage_engine] {option}: expected a directory or a JSON object of catalog properties: {error}"
            ". Nothing was changed."
        ) from None
    return {str(key): str(value) for key, value in properties.items()}


def _journal_url(read: Fields, password: str | None, defaults: Defaults, directory: Path) -> str:
    url = read.text("journal_url") or defaults.journal_url or f"sqlite:///{directory / 'journal.db'}"
    if not password:
        return url
    try:
        return make_url(url).set(password=password).render_as_string(hide_password=False)
    except (ArgumentError, ValueError):
        raise read.error("journal_url", "a SQLAlchemy URL", "something else") from None


def broker_of_fields(read: Fields, client_connection: str) -> LiveBroker | None:
    """Return the running broker that the fields describe; None if the store's broker is stopped.

    :param client_connection: type of Airflow connections that may have the broker's address, or "".
    :raises BadInputError: a field is missing, contradicts another, or can't be read. The error names it.
    """
    mode = LIVE if read.text("mode") == BESIDE else read.choice("mode", MODES)
    values = {setting.name: read.read(setting) for setting in STORE_SETTINGS if setting.live}
    if mode != LIVE:
        for name in ("broker_address", "name_servers"):
            if value := read.text(name):
                raise read.error(name, f"mode {LIVE}, or no {name}: in mode {mode} no broker runs", value)
        return None
    elsewhere = bool(client_connection and values["conn_id"])
    return live_broker(values, read.error, read.shown, address_elsewhere=elsewhere)


def with_broker_credentials(
    live: LiveBroker, conn_id: str | None, connection: Callable[[str], Any], client_connection: str = ""
) -> LiveBroker:
    """Return the broker with the keys or client settings of its Airflow connection, if a connection is named.

    The connection is looked up when a task runs. So credentials are in no DAG, no rendered field and no XCom.

    :param client_connection: type of Airflow connections whose extra has the settings of the broker's client.
    :raises BadInputError: the connection has no login or no password.
    """
    if conn_id is None:
        return live
    conn = connection(conn_id)
    if client_connection and conn.conn_type == client_connection:
        return replace(live, client={name: _text(value) for name, value in conn.extra_dejson.items()})
    if not (conn.login and conn.password):
        missing = "password" if conn.login else "login"
        raise BadInputError(
            f"connection {conn_id}, named by a store's broker_conn_id: expected the broker's access "
            f"key as its login and the secret key as its password, found no {missing}. Nothing was changed."
        )
    return replace(live, access_key=conn.login, secret_key=conn.password)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class NamedConnection(Protocol):
    """Fields that are read from an Airflow connection."""

    conn_id: str
    conn_type: str
    host: str | None
    port: int | None
    schema: str | None
    login: str | None

    @property
    def password(self) -> str | None: ...

    @property
    def extra_dejson(self) -> dict[str, Any]: ...


def with_credentials(lake: LakeConfig, connection: Callable[[str], Any]) -> LakeConfig:
    """Return the lake with properties from the connections that it names. The lake's own properties win.

    :param connection: function that looks up a :class:`NamedConnection` by its id.
    :raises BadInputError: a connection has a type that doesn't fit. The error names the connection.
    """
    properties = dict(lake.properties)
    for key, read in ((S3_CONNECTION, _object_store), (CATALOG_CONNECTION, _catalog_credentials)):
        if conn_id := properties.pop(key, ""):
            properties = {**read(connection(conn_id)), **properties}
    return LakeConfig(lake.name, properties, lake.namespace)


def _object_store(connection: NamedConnection) -> dict[str, str]:
    _check_type(connection, ("aws",), S3_CONNECTION)
    extra = connection.extra_dejson
    service = extra.get("service_config", {}).get("s3", {})
    return _present(
        {
            "s3.access-key-id": connection.login or extra.get("aws_access_key_id"),
            "s3.secret-access-key": connection.password or extra.get("aws_secret_access_key"),
            "s3.session-token": extra.get("aws_session_token"),
            "s3.endpoint": service.get("endpoint_url") or extra.get("endpoint_url"),
            "s3.region": extra.get("region_name"),
            "s3.role-arn": extra.get("role_arn"),
        }
    )


def _catalog_credentials(connection: NamedConnection) -> dict[str, str]:
    _check_type(connection, ("postgres", "http", "iceberg"), CATALOG_CONNECTION)
    if connection.conn_type == "postgres":
        url = URL.create(
            "postgresql+psycopg",
            connection.login,
            connection.password,
            connection.host,
            connection.port,
            connection.schema,
        )
        return {"type": "sql", "uri": url.render_as_string(hide_password=False)}
    secret = f"{connection.login}:{connection.password}" if connection.login else None
    return _present(
        {
            "type": "rest",
            "uri": _address(connection),
            "credential": secret if connection.password else None,
            "token": None if connection.login else connection.password,
        }
    )


def _address(connection: NamedConnection) -> str:
    """Return a catalog's address, as HttpHook does: the host may be an address, the schema its scheme."""
    host = connection.host or ""
    if "://" in host:
        return host
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.schema or 'http'}://{host}{port}"


def _check_type(connection: NamedConnection, expected: tuple[str, ...], key: str) -> None:
    if connection.conn_type not in expected:
        raise BadInputError(
            f"connection {connection.conn_id}, named by a lake's property {key}: expected type "
            f"{' or '.join(expected)}, found {connection.conn_type!r}. Nothing was changed."
        )


def _present(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items() if value}
