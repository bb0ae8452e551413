"""Settings of librdkafka that a connection may have: an allow-list, never one that runs what it names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from storage_engine.core.nearest import meant
from storage_engine.exceptions import BadInputError

_NAMES = """
    acks allow.auto.create.topics api.version.fallback.ms api.version.request
    api.version.request.timeout.ms auto.commit.enable auto.commit.interval.ms auto.offset.reset
    batch.num.messages batch.size bootstrap.servers broker.address.family broker.address.ttl
    broker.version.fallback builtin.features check.crcs client.dns.lookup client.id client.rack
    compression.codec compression.level compression.type connections.max.idle.ms
    consume.callback.max.messages coordinator.query.interval.ms debug delivery.report.only.error
    delivery.timeout.ms enable.auto.commit enable.auto.offset.store enable.gapless.guarantee
    enable.idempotence enable.metrics.push enable.partition.eof enable.random.seed
    enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification enabled_events
    fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes
    fetch.queue.backoff.ms fetch.wait.max.ms group.id group.instance.id group.protocol
    group.protocol.type group.remote.assignor heartbeat.interval.ms https.ca.location https.ca.pem
    isolation.level linger.ms log.connection.close log.queue log.thread.name log_level max.in.flight
    max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
    max.poll.records message.copy.max.bytes message.max.bytes message.send.max.retries
    message.timeout.ms metadata.broker.list metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy offset.store.method offset.store.path offset.store.sync.interval.ms
    partition.assignment.strategy partitioner produce.offset.report
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
    sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    sasl.password sasl.username security.protocol session.timeout.ms share.acknowledgement.mode
    socket.blocking.max.ms socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails
    socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
    ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem
    ssl.cipher.suites ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm
    ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password
    ssl.sigalgs.list statistics.interval.ms sticky.partitioning.linger.ms topic.blacklist
    topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
"""
"""Names in librdkafka's CONFIGURATION.md, as version 2.16.1 prints them (rd_kafka_conf_properties_show).

Left out is what loads a library (``plugin.library.paths``, ``ssl.engine.*``, ``ssl.providers``), runs a
command (``sasl.kerberos.kinit.cmd``), ends the process (``internal.termination.signal``), or is a function.
"""
ALLOWED = frozenset(_NAMES.split())
_IN_A_COMMAND = ("sasl.kerberos.principal", "sasl.kerberos.keytab")
"""A shell runs the default command with their values in it (rd_kafka_sasl_cyrus_kinit_refresh)."""
_PLAIN_WORD = re.compile(r"[\w/][\w/.@:+-]*", re.ASCII)
_HINTS = {"sasl.jaas.config": " It is Java's: give sasl.username and sasl.password."}


def check_options(settings: Mapping[str, str]) -> None:
    """Make sure that a client's settings only say how a cluster is reached and asked.

    :raises BadInputError: one is none of these, or holds what a shell would run; no value is shown.
    """
    for name, value in settings.items():
        if name not in ALLOWED:
            hint = _HINTS.get(name) or meant(name, ALLOWED)
            raise BadInputError(
                f"client setting {name}: expected a setting of librdkafka that loads no code, runs no "
                f"command and calls no function, found another.{hint} Nothing was changed. Leave it out.",
                page="connection",
            )
        if name in _IN_A_COMMAND and not _PLAIN_WORD.fullmatch(value):
            raise BadInputError(
                f"client setting {name}: expected letters, digits and / . @ : + - _ alone, as the value "
                "stands in the command that renews a ticket; found others. Nothing was changed.",
                page="connection",
            )
