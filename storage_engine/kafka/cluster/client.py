"""Requests to a cluster through confluent-kafka's AdminClient: the client's settings, and answers or errors.

Nothing is decided here. No message shows a setting's value that may be a secret.
"""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from storage_engine.core.credentials import property_secrets, without_secrets
from storage_engine.core.extras import KAFKA
from storage_engine.core.wording import did_you_mean
from storage_engine.exceptions import (
    BadInputError,
    BrokerRefusedError,
    BrokerUnavailableError,
    CorruptFileError,
)
from storage_engine.kafka.format.file_names import read_stored
from storage_engine.kafka.format.meta_properties import parse_properties
from storage_engine.model.broker.live import LiveBroker

_NAMES = """
    acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.commit.enable auto.commit.interval.ms auto.offset.reset batch.num.messages batch.size
    bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback builtin.features
    check.crcs client.dns.lookup client.id client.rack compression.codec compression.level compression.type
    connections.max.idle.ms consume.callback.max.messages coordinator.query.interval.ms debug
    delivery.report.only.error delivery.timeout.ms enable.auto.commit enable.auto.offset.store
    enable.gapless.guarantee enable.idempotence enable.metrics.push enable.partition.eof enable.random.seed
    enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification enabled_events
    fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
    heartbeat.interval.ms https.ca.location https.ca.pem isolation.level linger.ms log.connection.close
    log.queue log.thread.name log_level max.in.flight max.in.flight.requests.per.connection
    max.partition.fetch.bytes max.poll.interval.ms max.poll.records message.copy.max.bytes message.max.bytes
    message.send.max.retries message.timeout.ms metadata.broker.list metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy offset.store.method offset.store.path
    offset.store.sync.interval.ms partition.assignment.strategy partitioner produce.offset.report
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages queuing.strategy
    receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    request.required.acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    sasl.kerberos.keytab sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
    sasl.kerberos.service.name sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id
    sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions
    sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method
    sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password
    sasl.username security.protocol session.timeout.ms share.acknowledgement.mode socket.blocking.max.ms
    socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
    ssl.curves.list ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password ssl.key.pem
    ssl.keystore.location ssl.keystore.password ssl.sigalgs.list statistics.interval.ms
    sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
"""
"""Names in librdkafka's CONFIGURATION.md, as version 2.16.1 prints them (rd_kafka_conf_properties_show).

Left out are functions, and settings that load a library (``plugin.library.paths``, ``ssl.engine.*``,
``ssl.providers``), run a command (``sasl.kerberos.kinit.cmd``) or end the process
(``internal.termination.signal``).
"""
ALLOWED = frozenset(_NAMES.split())
_IN_A_COMMAND = ("sasl.kerberos.principal", "sasl.kerberos.keytab")
"""Settings whose values librdkafka puts into its default command, which a shell runs
(rd_kafka_sasl_cyrus_kinit_refresh)."""
_PLAIN_WORD = re.compile(r"[\w/][\w/.@:+-]*", re.ASCII)
_HINTS = {"sasl.jaas.config": " This is a setting of the Java client: give sasl.username and sasl.password."}


def check_options(settings: Mapping[str, str]) -> None:
    """Make sure that a client's settings only describe how to reach and ask a cluster.

    :raises BadInputError: a setting does something else, or its value may run a shell command. The message
        shows no value.
    """
    for name, value in settings.items():
        if name not in ALLOWED:
            hint = _HINTS.get(name) or did_you_mean(name, ALLOWED)
            raise BadInputError(
                f"client setting {name}: expected a setting of librdkafka that loads no code, runs no "
                f"command and calls no function, found another setting.{hint} Nothing was changed. Leave it "
                "out.",
                page="connection",
            )
        if name in _IN_A_COMMAND and not _PLAIN_WORD.fullmatch(value):
            raise BadInputError(
                f"client setting {name}: expected letters, digits and / . @ : + - _ alone, because the "
                "value is part of the command that renews a ticket; found other characters. Nothing was "
                "changed.",
                page="connection",
            )


_ADDRESS = re.compile(r"(?:\w+://)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]/]+))(?::(?P<port>\d{1,5}))?\Z")
_DEFAULT_PORT, _LAST_PORT = 9092, (1 << 16) - 1
_CONNECT_SECONDS = 1.0
"""Time limit for one address. A slower listener doesn't count as missing."""
_NO_WAY = frozenset({errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT})
"""Errors of an address that this machine can't reach at all, such as IPv6 on a machine without it."""


def nobody_listens(bootstrap: str) -> bool:
    """Return whether every address refuses connections or names no host.

    An address that doesn't answer in time may have a listener.

    :param bootstrap: ``bootstrap.servers``, as librdkafka reads it.
    """
    addresses = [address.strip() for address in bootstrap.split(",") if address.strip()]
    return bool(addresses) and all(map(_refuses, addresses))


def _refuses(address: str) -> bool:
    parts = _ADDRESS.match(address)
    port = int(parts["port"] or _DEFAULT_PORT) if parts else 0
    if parts is None or port > _LAST_PORT:
        return False
    try:
        places = socket.getaddrinfo(parts["v6"] or parts["host"], port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return error.errno == socket.EAI_NONAME
    except (OSError, UnicodeError):
        return False
    answers = {_answer(family, kind, place) for family, kind, _, _, place in places}
    return errno.ECONNREFUSED in answers and answers <= {errno.ECONNREFUSED, *_NO_WAY}


def _answer(family: int, kind: int, place: Any) -> int | None:
    """Connect to an address. Return the error's number; 0 without an error; None without a number."""
    try:
        with socket.socket(family, kind) as connection:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(place)
    except OSError as error:
        return error.errno
    return 0


NO_LEADER = -1

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, DescribeClusterResult

Answer = TypeVar("Answer")
Key = TypeVar("Key")

TIMEOUT_SECONDS = 15.0
"""Time limit of a request; a cluster that elects a leader takes a few seconds."""
_POLL_SECONDS = 0.2
_SHUT_OUT_SECONDS = 2.0
"""How long we wait for another broker to accept our credentials."""
_REFUSED_SECONDS = 1.0
"""How long we wait for a listener to start."""
_ELECTION_SECONDS = 5.0
"""How long brokers may name an outdated leader's epoch after an election."""
_MOST_AT_ONCE = 500
_BOOTSTRAP = "bootstrap.servers"
_OURS = {"client.id": "storage-engine", "log_level": "0", "socket.timeout.ms": "10000"}
"""Default settings of every client. Settings that a user names win over them."""
_MAX_CONFIG_BYTES = 1 << 20
_PYTHON_ONLY = frozenset({"error_cb", "stats_cb", "throttle_cb", "on_commit", "logger"})
"""Settings in an Airflow connection's extra that name Python functions, which only the provider calls."""
_MECHANISM = "SCRAM-SHA-512"
"""SASL mechanism if an access key is given and the settings name no mechanism."""
_HIDDEN = (
    "ssl.key.pem",
    "ssl.certificate.pem",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.pem",
)


def client_settings(live: LiveBroker) -> dict[str, str]:
    """Return librdkafka's settings from the connection, the settings file and the options.

    Options win over a connection, and a connection wins over a file.

    :raises BadInputError: a setting is missing, not allowed, or unknown to librdkafka. The message shows no
        value.
    """
    if live.name_servers or live.broker_name or live.tls_server_name:
        text = live.name_servers or live.broker_name or live.tls_server_name
        raise BadInputError(
            f"{text}: expected only a broker's address for a cluster of Kafka, found a name server, a "
            "broker's name or a name for TLS. Nothing was changed. Leave it out."
        )
    settings = {} if not live.client_config else _config_file(Path(live.client_config))
    settings |= {name: value for name, value in live.client.items() if name not in _PYTHON_ONLY}
    check_options(settings)
    if live.address:
        settings[_BOOTSTRAP] = live.address
    if live.access_key:
        settings |= {"sasl.username": live.access_key, "sasl.password": live.secret_key}
        settings.setdefault("sasl.mechanism", settings.pop("sasl.mechanisms", _MECHANISM))
    if live.tls or live.access_key:
        name = ("SASL_" if live.access_key else "") + ("SSL" if live.tls else "PLAINTEXT")
        settings["security.protocol"] = name
    if live.tls_ca_file:
        settings["ssl.ca.location"] = live.tls_ca_file
    if live.tls_certificate_file:
        settings |= dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), live.tls_certificate_file)
    if live.tls and not live.tls_verify:
        settings["enable.ssl.certificate.verification"] = "false"
    if not settings.get(_BOOTSTRAP):
        raise BadInputError(
            f"A cluster of Kafka: expected {_BOOTSTRAP} among the settings of its client, found none. "
            "Nothing was changed. Name a broker, or a connection or file that names a broker."
        )
    return settings


def _config_file(path: Path) -> dict[str, str]:
    try:
        return dict(parse_properties(read_stored(path, _MAX_CONFIG_BYTES), str(path)))
    except (OSError, CorruptFileError) as error:
        reason = error.strerror if isinstance(error, OSError) else "something else"
        raise BadInputError(
            f"{path}: expected settings of librdkafka, one name=value a line, found {reason}. Nothing was "
            "changed."
        ) from error


def is_topics_own(entry: Any) -> bool:
    """Return whether a topic has a setting of its own, rather than its brokers' value."""
    from confluent_kafka.admin import ConfigSource

    return bool(getattr(entry.source, "value", entry.source) == ConfigSource.DYNAMIC_TOPIC_CONFIG.value)


class Cluster:
    """A running cluster.

    Its ``admin`` makes requests whose answers are futures: see :meth:`answer`. Its connections end when no
    caller refers to the object any more.

    :raises MissingExtraError: confluent-kafka isn't installed.
    :raises BadInputError: the client doesn't accept a setting.
    """

    def __init__(self, live: LiveBroker) -> None:
        KAFKA.require("a running cluster of Kafka")
        settings = client_settings(live)
        self.address = settings[_BOOTSTRAP]
        self._secrets = property_secrets(settings) | {settings[name] for name in _HIDDEN if name in settings}
        self._trouble = ""
        self._is_shut_out = False
        self._has_answered = False
        self._settings = settings
        self.admin = self._connect(settings)

    def answer(self, what: str, future: Future[Answer]) -> Answer:
        """Return the answer to a request.

        :param what: the request, for a message.
        :raises BrokerUnavailableError: no broker answers.
        :raises BrokerRefusedError: the cluster refuses; the error's code is the reason.
        """
        begun = time.monotonic()
        with self._errors(what):
            while True:
                try:
                    result = future.result(_POLL_SECONDS)
                    self._has_answered = True
                    return result
                except TimeoutError:
                    self.admin.poll(0)
                    waited = time.monotonic() - begun
                    # A cluster that has answered before may lack a broker for a moment.
                    is_new = bool(self._trouble) and not self._has_answered
                    if waited > _REFUSED_SECONDS and is_new and nobody_listens(self.address):
                        raise TimeoutError("nobody listens there") from None
                    # A broker that refuses our credentials refuses them again, but the client goes on trying.
                    if waited > TIMEOUT_SECONDS + 5 or (self._is_shut_out and waited > _SHUT_OUT_SECONDS):
                        raise

    def answers(
        self, what: str, keys: Sequence[Key], ask: Callable[[Sequence[Key]], Mapping[Any, Future[Answer]]]
    ) -> Iterator[tuple[Any, Answer | BrokerRefusedError]]:
        """Send a request for each key, several at a time. Yield each key with its answer or its refusal.

        A client caches leaders' epochs, and uses an epoch even after the leader has refused it. So a request
        that is refused for its epoch is repeated with a new client, for a few seconds.

        :param ask: makes the requests for some keys with the present client.
        :raises BrokerUnavailableError: no broker answers.
        """
        from confluent_kafka import KafkaError

        outdated_codes = (KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH)
        deadline = time.monotonic() + _ELECTION_SECONDS
        pending = keys
        while pending:
            outdated: list[Key] = []
            for key, answer in self._each(what, pending, ask):
                code = answer.code if isinstance(answer, BrokerRefusedError) else None
                if code in outdated_codes and time.monotonic() <= deadline:
                    outdated.append(key)
                else:
                    yield key, answer
            if pending := outdated:
                time.sleep(_POLL_SECONDS)
                self.admin = self._connect(self._settings)

    def _each(
        self, what: str, keys: Sequence[Key], ask: Callable[[Sequence[Key]], Mapping[Any, Future[Answer]]]
    ) -> Iterator[tuple[Any, Answer | BrokerRefusedError]]:
        for first in range(0, len(keys), _MOST_AT_ONCE):
            with self._errors(what):
                futures = ask(keys[first : first + _MOST_AT_ONCE])
            for key, future in futures.items():
                try:
                    yield key, self.answer(what, future)
                except BrokerRefusedError as error:
                    yield key, error

    def topics(self, what: str, names: Sequence[str]) -> Iterator[tuple[str, Any | BrokerRefusedError]]:
        """Yield each topic with its description, or with the error if the cluster refuses it.

        :param what: the request, for a message.
        :raises BrokerUnavailableError: no broker answers.
        """
        from confluent_kafka import TopicCollection

        def ask(some: Sequence[str]) -> Any:
            return self.admin.describe_topics(TopicCollection(list(some)), request_timeout=TIMEOUT_SECONDS)

        return self.answers(what, names, ask)

    def topic_settings(
        self, names: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, Any] | BrokerRefusedError]]:
        """Yield each topic with its settings' entries by name, or with the error if the cluster refuses it.

        :raises BrokerUnavailableError: no broker answers.
        """
        from confluent_kafka.admin import ConfigResource

        def ask(some: Sequence[str]) -> Any:
            resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in some]
            return self.admin.describe_configs(resources, request_timeout=TIMEOUT_SECONDS)

        for resource, answer in self.answers("settings of topics", names, ask):
            yield resource.name, answer

    def node_settings(self, node_id: int | None) -> Mapping[str, str]:
        """Return a node's settings that have a value; none if the account may not ask for them.

        :param node_id: None if unknown. Then no request is made, and the result is empty.
        :raises BrokerUnavailableError: no broker answers.
        """
        from confluent_kafka.admin import ConfigResource

        if node_id is None:
            return {}
        resource = ConfigResource(ConfigResource.Type.BROKER, str(node_id))
        (future,) = self.admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS).values()
        try:
            entries = self.answer("settings of the node", future)
        except BrokerRefusedError:
            # The missing right is a finding of its own.
            return {}
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def consumer_settings(self) -> dict[str, Any]:
        """Return settings of a consumer that reads single records, commits nothing and joins no group."""
        return {
            **_OURS,
            **self._settings,
            "group.id": "storage-engine",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
            "queued.min.messages": 1,
            "max.partition.fetch.bytes": 1 << 16,
            "error_cb": self._note,
        }

    def described(self) -> DescribeClusterResult:
        """Return the cluster's description of itself.

        A broker may name any broker as the controller, and the named broker answers this request. After a
        while, brokers no longer name a broker that hangs. But a client remembers the name, and still asks the
        broker that hangs. So a new client asks once more.

        :raises BrokerUnavailableError: no broker answers, or no broker accepts our credentials.
        """
        try:
            return self._describe()
        except BrokerUnavailableError:
            # The cluster can't be reached or refuses our credentials: no broker hangs.
            if self._trouble or self._is_shut_out:
                raise
        self.admin = self._connect(self._settings)
        return self._describe()

    def _describe(self) -> DescribeClusterResult:
        return self.answer(
            "its brokers and its controller", self.admin.describe_cluster(request_timeout=TIMEOUT_SECONDS)
        )

    def _connect(self, settings: Mapping[str, str]) -> AdminClient:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            return AdminClient({**_OURS, **settings, "error_cb": self._note})
        except KafkaException as error:
            reason = self.shown(error.args[0].str())
            raise BadInputError(
                f"{self.address}: expected settings that librdkafka takes, found: {reason}. Nothing was "
                "changed."
            ) from None

    def _note(self, error: KafkaError) -> None:
        """Keep the error of a connection: the error of a request only says that the request timed out."""
        from confluent_kafka import KafkaError as Codes

        self._is_shut_out = self._is_shut_out or error.code() in (Codes._AUTHENTICATION, Codes._SSL)
        if error.code() != Codes._ALL_BROKERS_DOWN:
            self._trouble = self.shown(error.str())

    def shown(self, text: str) -> str:
        """Return a text without the secrets in our settings."""
        return without_secrets(text, self._secrets)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except (KafkaException, TimeoutError) as error:
            failure = error.args[0] if isinstance(error, KafkaException) else None
            # Local errors are below 0: nobody has answered.
            if failure is not None and failure.code() > 0:
                raise BrokerRefusedError(
                    f"{self.address}: asked for {what}, the cluster refuses: {failure.name()}: "
                    f"{self.shown(failure.str())}",
                    code=failure.code(),
                    remark=self.shown(failure.str()),
                ) from error
            reason = (str(error) or "no answer in time") if failure is None else self.shown(failure.str())
            self.admin.poll(0)
            more = f" ({self._trouble})" if self._trouble else ""
            raise BrokerUnavailableError(
                f"{self.address}: asked for {what}, expected an answer of the cluster, found: "
                f"{reason}{more}. Check the address, and that a broker runs there."
            ) from error
