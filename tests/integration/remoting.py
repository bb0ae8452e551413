"""What tests ask of a broker beyond administration: whole queues, the index, and to send."""

from __future__ import annotations

from demo.brokers.reading import PullStatus, ReadingAdmin, split_frames
from storage_engine.exceptions import BrokerError
from storage_engine.rocketmq.remoting.command import SUCCESS, RemotingCommand
from storage_engine.rocketmq.remoting.connection import Access

QUERY_MESSAGE = 12
QUERY_NOT_FOUND = 22


class RemotingClient(ReadingAdmin):
    """A client of a broker on loopback."""

    def __init__(self, port: int, access: Access) -> None:
        super().__init__(f"127.0.0.1:{port}", access)

    def call(self, code: int, /, *, body: bytes = b"", **fields: object) -> RemotingCommand:
        """Have the broker do something.

        :raises BrokerError: it does not say that it succeeded.
        """
        return self._connection.act(code, fields, body=body)

    def view(self, physical_offset: int) -> bytes | None:
        return self.view_message(physical_offset)

    def queue(self, topic: str, queue_id: int, start: int, end: int) -> dict[int, bytes]:
        """Every message of queue offsets [start, end): queue offset → frame.

        :raises BrokerError: when the broker skips or refuses one of them.
        """
        found: dict[int, bytes] = {}
        offset = start
        while offset < end:
            result = self.pull(topic, queue_id, offset)
            if result.status is not PullStatus.FOUND or len(result.frames) != result.next_offset - offset:
                raise BrokerError(f"pull {topic}/{queue_id} at {offset}, expected up to {end}: {result}")
            found.update((offset + i, frame) for i, frame in enumerate(result.frames) if offset + i < end)
            offset = result.next_offset
        return found

    def query(self, topic: str, key: str, *, max_messages: int = 64) -> tuple[bytes, ...]:
        """Frames that the broker's index has under a topic and key, newest first."""
        answer = self._connection.read(
            QUERY_MESSAGE,
            {
                "topic": topic,
                "key": key,
                "maxNum": max_messages,
                "beginTimestamp": 0,
                "endTimestamp": 2**63 - 1,
            },
            accept=(SUCCESS, QUERY_NOT_FOUND),
        )
        return split_frames(answer.body)
