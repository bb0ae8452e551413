"""Administrative requests to one live broker: reads, and the two that change something.

Reads are repeated where that is safe, and change nothing on the broker: not even a group or a queue that it
would create for who asks for it. A success that a broker reports without having done it is found out here
(config), or is the caller's to find out, where only files and offsets can tell (deletion).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Self, TypeVar

import javaproperties
import pyarrow as pa

from storage_engine.core.untrusted import MALFORMED
from storage_engine.exceptions import (
    BadInputError,
    BrokerError,
    BrokerProtocolError,
    BrokerRefusedError,
    NotOnBrokerError,
)
from storage_engine.rocketmq.format.broker_config import release_of, with_release
from storage_engine.rocketmq.lag.consumer_offsets import in_queue_order, parse_offsets
from storage_engine.rocketmq.remoting import answers, command
from storage_engine.rocketmq.remoting.answers import (
    AnswerError,
    RuntimeInfo,
)
from storage_engine.rocketmq.remoting.command import MAX_FRAME_BYTES, RemotingCommand
from storage_engine.rocketmq.remoting.connection import Access, Connection

CHANGEABLE_SETTINGS: Final = frozenset(
    {"cleanFileForciblyEnable", "deleteWhen", "diskMaxUsedSpaceRatio", "fileReservedTime"}
)
"""Settings that retention has business with. A broker also takes some that ruin its store, as file sizes."""
MAX_OFFSETS_BYTES: Final = 512 * 1024 * 1024
"""Longest table of consumer offsets that is taken; a broker with 10 million positions sends about 300 MB."""

_T = TypeVar("_T")


class BrokerAdmin:
    """One broker. May be shared by threads; requests follow each other. Connects at the first one.

    All methods raise BrokerUnavailableError (no answer), BrokerProtocolError (none of a broker's) and
    BrokerRefusedError (answered that it won't), beside what they name.

    :param address: ``host:port`` of the broker's listen port.
    :raises BadInputError: the address or a TLS file can't be used.
    """

    def __init__(self, address: str, access: Access | None = None) -> None:
        self._connection = Connection(address, access)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        return self._connection.address

    def close(self) -> None:
        self._connection.close()

    def at(self, address: str, timeout_seconds: float) -> BrokerAdmin:
        """The same access at another address; over TLS it has to show the same name."""
        return BrokerAdmin(address, self._connection.access_elsewhere(timeout_seconds))

    def runtime_info(self) -> RuntimeInfo:
        """State of the store (GET_BROKER_RUNTIME_INFO)."""
        return self._read(
            command.GET_BROKER_RUNTIME_INFO,
            lambda answer: answers.runtime_info(answer.body, release_of(answer.version)),
        )

    def confirmed_offset(self) -> int | None:
        """Return up to where all connected replicas have a log (GET_BROKER_HA_STATUS).

        :return: None: the broker isn't its master, or isn't connected with all that are in sync.
        """
        return self._read(command.GET_BROKER_HA_STATUS, lambda answer: answers.confirmed_offset(answer.body))

    def has_slaves(self) -> bool:
        """Return whether slaves are, or may be, connected (GET_BROKER_HA_STATUS); False of 4.9, which doesn't
        know the request.
        """
        try:
            return self._read(command.GET_BROKER_HA_STATUS, lambda answer: answers.has_slaves(answer.body))
        except BrokerRefusedError as error:
            return error.code != command.REQUEST_CODE_NOT_SUPPORTED

    def config(self) -> dict[str, str]:
        """Return every setting in effect, but passwords; broker.conf may differ (GET_BROKER_CONFIG).

        :return: with the broker's release as :data:`RELEASE`.
        """
        return self._read(
            command.GET_BROKER_CONFIG,
            lambda answer: with_release(answers.config(answer.body), answer.version),
        )

    def update_config(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Change settings and read them back (UPDATE_BROKER_CONFIG).

        The broker rewrites its whole broker.conf. It says 0 for keys that it doesn't know, values that it
        ignores, and when it can't write broker.conf: then the settings hold until it restarts. A lost answer
        is no failure when the settings are there.

        :param settings: as the broker writes them: ``true``, ``48``.
        :return: all settings, read afterwards.
        :raises BadInputError: a setting that retention has no business with; nothing was sent.
        :raises NotOnBrokerError: a setting that this broker doesn't have; nothing was sent.
        :raises BrokerRefusedError: it said yes, and has another value.
        """
        if foreign := sorted(settings.keys() - CHANGEABLE_SETTINGS):
            raise BadInputError(
                f"{self.address}: expected settings among {', '.join(sorted(CHANGEABLE_SETTINGS))}, found "
                f"{', '.join(foreign)}. Change others in broker.conf."
            )
        if unknown := sorted(settings.keys() - self.config().keys()):
            raise NotOnBrokerError(
                f"{self.address}: expected a broker with {', '.join(unknown)}, found none of these settings. "
                "Check the broker's release."
            )
        body = javaproperties.dumps(settings, timestamp=None).encode("ascii")
        unanswered: BrokerError | None = None
        try:
            self._connection.act(command.UPDATE_BROKER_CONFIG, body=body)
        except BrokerRefusedError:
            raise
        except BrokerError as error:
            if not error.may_have_acted:
                raise
            unanswered = error
        try:
            after = self.config()
        except BrokerError as error:
            error.may_have_acted = True
            raise
        wrong = [
            f"{key}={after.get(key)!r} instead of {value!r}"
            for key, value in settings.items()
            if after.get(key) != value
        ]
        if not wrong:
            return after
        if unanswered is not None:
            raise unanswered
        raise BrokerRefusedError(
            f"{self.address}, request {command.UPDATE_BROKER_CONFIG}: the broker said that it changed its "
            f"config, and has {', '.join(wrong)}. Give values as the broker writes them, or change them in "
            "broker.conf.",
            may_have_acted=True,
        )

    def delete_expired_commitlog(self) -> None:
        """Have up to 20 passes of deletion run, one each 10 s, whatever the hour (DELETE_EXPIRED_COMMITLOG).

        Success only says that a counter was set: what went, the files and the min offset tell.

        :raises BrokerError: with ``may_have_acted`` when the counter may be set all the same.
        """
        self._connection.act(command.DELETE_EXPIRED_COMMITLOG)

    def groups(self) -> frozenset[str]:
        """Consumer groups that the broker has (GET_ALL_SUBSCRIPTIONGROUP_CONFIG)."""
        return self._read(
            command.GET_ALL_SUBSCRIPTION_GROUP_CONFIG, lambda answer: answers.groups(answer.body)
        )

    def clustering_subscriptions(self, group: str) -> frozenset[str]:
        """Return the topics that a group's members subscribe to, as they said (GET_CONSUMER_CONNECTION_LIST).

        :return: none for a group without members now, or whose members each take every message.
        """

        def parse(answer: RemotingCommand) -> frozenset[str]:
            if answer.code == command.CONSUMER_NOT_ONLINE:
                return frozenset()
            return answers.clustering_subscriptions(answer.body)

        return self._read(
            command.GET_CONSUMER_CONNECTION_LIST,
            parse,
            {"consumerGroup": group},
            accept=(command.SUCCESS, command.CONSUMER_NOT_ONLINE),
        )

    def consumer_offsets(self) -> pa.Table:
        """Return every committed offset, light message queues included (GET_ALL_CONSUMER_OFFSET).

        :return: as ``rocketmq.lag.consumer_offsets.consumer_offsets`` returns them.
        """

        def parse(answer: RemotingCommand) -> pa.Table:
            try:
                return in_queue_order(parse_offsets(answer.body))
            except MALFORMED as error:
                raise AnswerError(f"expected offsets by topic@group and queue, found {error}") from error

        return self._read(command.GET_ALL_CONSUMER_OFFSET, parse, max_bytes=MAX_OFFSETS_BYTES)

    def view_message(self, physical_offset: int) -> bytes | None:
        """The frame at a physical offset; None where the log has none (VIEW_MESSAGE_BY_ID).

        :raises BrokerRefusedError: also where the offset lies within a frame.
        """
        try:
            return self._read(
                command.VIEW_MESSAGE_BY_ID,
                lambda answer: answers.message_at(answer.body, physical_offset),
                {"topic": "", "offset": physical_offset},
            )
        except BrokerRefusedError as error:
            if "can not find message" in error.remark:
                return None
            raise

    def _read(
        self,
        code: int,
        parse: Callable[[RemotingCommand], _T],
        fields: Mapping[str, object] | None = None,
        *,
        accept: tuple[int, ...] = (command.SUCCESS,),
        max_bytes: int = MAX_FRAME_BYTES,
    ) -> _T:
        try:
            answer = self._connection.read(code, fields, accept=accept, max_bytes=max_bytes)
            return answers.checked(lambda: parse(answer))
        except AnswerError as error:
            raise BrokerProtocolError(
                f"{self._connection.what(code)}: {error}. Check that a broker of "
                "RocketMQ 4.9 or 5 listens there."
            ) from error
