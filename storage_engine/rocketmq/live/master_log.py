"""The log of a slave's master, beside the archived segments that the slave is to begin with. Changes nothing.

A slave asks its master for what follows its own last byte. A master that no longer has it sends heartbeats
for ever, and one whose log has other messages before it goes on all the same: neither broker says a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from storage_engine.exceptions import BrokerError, NotOnBrokerError, RestoreError
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.proof.receipt import Receipt
from storage_engine.rocketmq.codec.commitlog import FrameKind, scan_segment
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.hold.state import NAME
from storage_engine.rocketmq.live.connect import reach_master
from storage_engine.rocketmq.live.identity import frame_sha256
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.remoting.masters import NAME_SERVERS

_NOTHING_WRITTEN = "Nothing was written."


def check_goes_on(
    slave: BrokerConfig, receipts: Sequence[Receipt], read_segment: Callable[[Receipt], bytearray]
) -> None:
    """Make sure that the slave's master has the last archived message, and so what follows it.

    Where both have that message, both have the same bytes before it: it bears its own physical and queue
    offset and its store time.

    :param receipts: of what the slave is to begin with, oldest first.
    :raises RestoreError: the master has another message there or none, or can't be asked.
    """
    offset, message = _last_message(receipts, read_segment)
    try:
        with _reach_master(slave) as master:
            where = f"{slave.source}: master {master.address}"
            min_offset = master.runtime_info().commitlog_min_offset
            if min_offset > offset:
                raise RestoreError(
                    f"{where}: expected a log that begins before the last archived message, at physical "
                    f"offset {offset}, found that it begins at {min_offset}: a slave would wait for ever for "
                    f"what the master no longer has. {_NOTHING_WRITTEN} Archive more of the master's log "
                    "first."
                )
            if (theirs := frame_sha256(master, offset)) != sha256(message).hexdigest():
                found = "another" if theirs else "none that begins there"
                raise RestoreError(
                    f"{where}: expected the last archived message, at physical offset {offset}, found "
                    f"{found}: its log goes on otherwise than the archived one, and a slave would differ "
                    f"from it without a word. {_NOTHING_WRITTEN} Restore less (--to-offset "
                    f"{receipts[-1].base_offset}), or the lineage that the master has (--lineage)."
                )
    except (BrokerError, NotOnBrokerError) as error:
        if isinstance(error, NotOnBrokerError):
            advice = "Start the master first; or, for a store without one, set brokerRole to ASYNC_MASTER."
        else:
            advice = (
                "Make it answer. It is asked without an access key and without TLS: where it or its name "
                "server requires one (ACL, tls.server.mode=enforcing), let it take such requests of this "
                "host meanwhile."
            )
        raise RestoreError(
            f"{slave.source}: brokerRole: expected for SLAVE a master that shows whether its log is the "
            f"archived one, found that it can't be asked: {error} {_NOTHING_WRITTEN} {advice}"
        ) from error


def _reach_master(slave: BrokerConfig) -> BrokerAdmin:
    """
    :raises RestoreError: the settings name no master.
    :raises BadInputError: who is named is none.
    """
    name_servers, name = (slave.raw.get(key, "").strip() for key in (NAME_SERVERS, NAME))
    if not (name_servers and name):
        raise RestoreError(
            f"{slave.source}: expected {NAME_SERVERS} and {NAME}, which tell the master of a slave "
            f"(brokerRole=SLAVE), found {NAME_SERVERS}={name_servers!r} and {NAME}={name!r}. "
            f"{_NOTHING_WRITTEN} Set both."
        )
    return reach_master(slave.raw, LiveBroker())


def _last_message(
    receipts: Sequence[Receipt], read_segment: Callable[[Receipt], bytearray]
) -> tuple[int, bytes]:
    """Return the last message's physical offset and bytes; a segment may be one blank frame.

    :raises RestoreError: there is none.
    """
    for receipt in reversed(receipts):
        data = read_segment(receipt)
        frames = scan_segment(data, receipt.base_offset)
        for row in (frames.kind == FrameKind.MESSAGE).nonzero()[0][-1:]:
            offset = int(frames.physical_offset[row])
            at = offset - receipt.base_offset
            return offset, bytes(data[at : at + int(frames.size_bytes[row])])
    raise RestoreError(
        f"{receipts[0].log}: expected a message in what a slave is to begin with, found none. "
        f"{_NOTHING_WRITTEN} Restore more of the log."
    )
