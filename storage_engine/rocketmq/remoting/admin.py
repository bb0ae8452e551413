"""Administrative requests to one live broker: reads, a change of settings, and a trigger of deletions.

Reads change nothing: the broker doesn't even create a group or queue that they name. A broker may report
success without having acted. A change of settings is read back here. A deletion must be checked by the
caller, since only files and offsets show it.
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
"""Settings that retention may change. Other settings could ruin the store, such as the size of files."""
MAX_OFFSETS_BYTES: Final = 512 * 1024 * 1024
"""Largest accepted table of consumer offsets. A broker with 10 million positions sends about 300 MB."""

_T = TypeVar("_T")


class BrokerAdmin:
    """Access to one broker, which connects at the first request.

    Threads may share it: requests are sent one after the other. All methods raise BrokerUnavailableError (no
    answer), BrokerProtocolError (not a broker's answer) and BrokerRefusedError (the broker refuses).

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
        """Return an access to another address. Over TLS, the same certificate name is expected there."""
        return BrokerAdmin(address, self._connection.access_elsewhere(timeout_seconds))

    def runtime_info(self) -> RuntimeInfo:
        """Return the state of the store (GET_BROKER_RUNTIME_INFO)."""
        return self._read(
            command.GET_BROKER_RUNTIME_INFO,
            lambda answer: answers.runtime_info(answer.body, release_of(answer.version)),
        )

    def confirmed_offset(self) -> int | None:
        """Return the offset up to which all connected replicas have the log (GET_BROKER_HA_STATUS).

        :return: None if the broker isn't the log's master, or isn't connected to all replicas in sync.
        """
        return self._read(command.GET_BROKER_HA_STATUS, lambda answer: answers.confirmed_offset(answer.body))

    def has_slaves(self) -> bool:
        """Return whether slaves may be connected (GET_BROKER_HA_STATUS; False for 4.9, which lacks it)."""
        try:
            return self._read(command.GET_BROKER_HA_STATUS, lambda answer: answers.has_slaves(answer.body))
        except BrokerRefusedError as error:
            return error.code != command.REQUEST_CODE_NOT_SUPPORTED

    def config(self) -> dict[str, str]:
        """Return the settings in effect, without passwords (GET_BROKER_CONFIG). broker.conf may differ.

        :return: the settings, with the broker's release under the key :data:`RELEASE`.
        """
        return self._read(
            command.GET_BROKER_CONFIG,
            lambda answer: with_release(answers.config(answer.body), answer.version),
        )

    def update_config(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Change settings and read them back (UPDATE_BROKER_CONFIG).

        The broker rewrites its whole broker.conf. It reports success (code 0) even if it doesn't know a key,
        ignores a value, or can't write broker.conf. In the last case the settings last until a restart. If
        the answer is lost, the call succeeds when the settings have the new values.

        :param settings: values in the broker's form, such as ``true`` or ``48``.
        :return: all settings, read afterwards.
        :raises BadInputError: retention may not change one of the settings. Nothing was sent.
        :raises NotOnBrokerError: the broker doesn't have one of the settings. Nothing was sent.
        :raises BrokerRefusedError: the broker reported success, but has another value.
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
        except BrokerError as error:
            if isinstance(error, BrokerRefusedError) or not error.may_have_acted:
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
            f"{self.address}, request {command.UPDATE_BROKER_CONFIG}: the broker reported that it changed "
            f"its config, but has {', '.join(wrong)}. Give values as the broker writes them, or change them "
            "in broker.conf.",
            may_have_acted=True,
        )

    def delete_expired_commitlog(self) -> None:
        """Trigger up to 20 passes of deletion at intervals of 10 s, at any hour (DELETE_EXPIRED_COMMITLOG).

        Success only means that a counter was set. Files and min offset show which segments were deleted.

        :raises BrokerError: has ``may_have_acted`` set if the broker may have set the counter.
        """
        self._connection.act(command.DELETE_EXPIRED_COMMITLOG)

    def groups(self) -> frozenset[str]:
        """Return the broker's consumer groups (GET_ALL_SUBSCRIPTIONGROUP_CONFIG)."""
        return self._read(
            command.GET_ALL_SUBSCRIPTION_GROUP_CONFIG, lambda answer: answers.groups(answer.body)
        )

    def clustering_subscriptions(self, group: str) -> frozenset[str]:
        """Return the topics to which a group's connected members subscribe (GET_CONSUMER_CONNECTION_LIST).

        :return: empty if the group has no connected members, or its members each take all messages.
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
        """Return all committed offsets, also of light message queues (GET_ALL_CONSUMER_OFFSET).

        :return: the same table as from ``rocketmq.lag.consumer_offsets.consumer_offsets``.
        """

        def parse(answer: RemotingCommand) -> pa.Table:
            try:
                return in_queue_order(parse_offsets(answer.body))
            except MALFORMED as error:
                raise AnswerError(f"expected offsets by topic@group and queue, found {error}") from error

        return self._read(command.GET_ALL_CONSUMER_OFFSET, parse, max_bytes=MAX_OFFSETS_BYTES)

    def view_message(self, physical_offset: int) -> bytes | None:
        """Return the frame at a physical offset; None if the log has none there (VIEW_MESSAGE_BY_ID).

        :raises BrokerRefusedError: the broker refuses, or the offset is within a frame.
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
            return answers.check_answer(lambda: parse(answer))
        except AnswerError as error:
            raise BrokerProtocolError(
                f"{self._connection.what(code)}: {error}. Check that a broker of "
                "RocketMQ 4.9 or 5 listens there."
            ) from error
