"""Checks that a directory is the store of the broker that answers: by frames, lock and process, not by path.

The first message of the newest sealed segment shows whether the broker still has the held store. A crash may
change the active segment, but never a sealed one.

A restored slave's last message is compared with its master's log. A slave asks its master for the bytes
behind this message. A master that no longer has these bytes sends heartbeats for ever. A master whose earlier
messages differ sends its own bytes all the same. In both cases neither broker reports an error.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

import psutil

from storage_engine.exceptions import (
    BadInputError,
    BrokerError,
    BrokerRefusedError,
    NotOnBrokerError,
    RestoreError,
)
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.proof.receipt import Receipt
from storage_engine.rocketmq.codec.commitlog import FrameKind, scan_segment
from storage_engine.rocketmq.codec.frame_layout import MESSAGE_MAGICS, MIN_MESSAGE_BYTES
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile
from storage_engine.rocketmq.format.stored_files import ATTEMPTS, open_stored
from storage_engine.rocketmq.hold.hold_state import NAME, HoldState, Observed
from storage_engine.rocketmq.live.connect import as_who_may_read, reach_master
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.remoting.answers import RuntimeInfo
from storage_engine.rocketmq.remoting.connection import split_address
from storage_engine.rocketmq.remoting.masters import NAME_SERVERS
from storage_engine.rocketmq.store.store_lock import is_locked, lock_holder

Found = TypeVar("Found")

_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}
"""Address to ask if a broker listens on all addresses."""
_LOCAL_SECONDS: Final = 3.0


def ask_and_look(
    admin: BrokerAdmin, look: Callable[[], tuple[Found, Sequence[MappedFile]]]
) -> tuple[RuntimeInfo, Found, Sequence[MappedFile]]:
    """Ask a broker for its log's offsets, then list the log's files.

    If all files begin behind the max offset in the answer, the answer is outdated. Then the broker is asked
    and the files are listed again, at most :data:`ATTEMPTS` times in all.
    """
    for _ in range(ATTEMPTS):
        info = admin.runtime_info()
        result, files = look()
        if not files or files[0].base_offset <= info.commitlog_max_offset:
            break
    return info, result, files


def explain_unproven(
    admin: BrokerAdmin, info: RuntimeInfo, layout: StoreLayout, files: Sequence[MappedFile]
) -> str:
    """Return the reason why a directory isn't provably the answering broker's store; empty if it is."""
    try:
        proven = check_same_store(admin, info, layout, files)
    except BadInputError as error:
        return str(error)
    return "" if proven else left_open(admin, layout)


def left_open(admin: BrokerAdmin, layout: StoreLayout) -> str:
    """Return the reason why a store isn't proven: no check failed, but one couldn't be made."""
    return (
        f"{layout.root}: expected the process that has its lock {layout.lock} to say that it is the one that "
        f"answers at {admin.address}, or that address to be one of this host, found that neither can be "
        "told from here"
    )


def check_same_store(
    admin: BrokerAdmin, info: RuntimeInfo, layout: StoreLayout, files: Sequence[MappedFile]
) -> bool:
    """Check that these files are the broker's: compare a frame, and ask the process with their lock.

    The frame is the first one of the newest segment that begins with a message.

    A copy of a store has the same frames, but no process has its lock. A slave's store has the same frames,
    but the slave's process has its lock, and not the broker that answers.

    :param info: the broker's answer from before the files were listed.
    :param files: files of the log, in order; older files may be gone by now.
    :return: whether all checks were made: a message was compared, and the broker that answers runs here.
    :raises BadInputError: the files aren't the broker's.
    """
    _check_reaches_end(admin, info, layout, files)
    with as_who_may_read(layout.root):
        locked = is_locked(layout)
    if locked is False:
        raise BadInputError(
            f"{layout.root}: expected the store on which broker {admin.address} runs, found that no process "
            f"has the lock {layout.lock}: it is a copy, or a mount that doesn't show the locks of the "
            "broker's machine. Nothing was changed. Check the path, and run where the broker runs."
        )
    runs_here = _check_process(admin, info, layout)
    for file in reversed(files):
        if file.base_offset >= info.commitlog_max_offset:
            continue
        with as_who_may_read(layout.root):
            frame = _first_frame(file.path)
        if frame is None:
            continue
        if admin.view_message(file.base_offset) == frame:
            return runs_here
        raise BadInputError(
            f"{file.path}: expected the store of broker {admin.address}, found that the broker has another "
            f"message at offset {file.base_offset}. Nothing was changed. Check the path, what is mounted at "
            "it, and the address."
        )
    return False


def _check_process(admin: BrokerAdmin, info: RuntimeInfo, layout: StoreLayout) -> bool:
    """Ask the process with the store's lock for its start time. It must be that of the answering broker.

    If the process is in another container, or this user may not see its sockets, it can't be asked.

    :return: whether the start times are equal; if it can't be asked, whether the broker's address is local.
    :raises BadInputError: another broker has the lock.
    """
    holder = lock_holder(layout)
    if holder is None:
        return _is_here(admin.address)
    try:
        sockets = psutil.Process(holder.pid).net_connections("tcp")
    except psutil.Error:
        return _is_here(admin.address)
    listening = {int(conn.laddr.port): conn.laddr.ip for conn in sockets if conn.status == psutil.CONN_LISTEN}
    expected_port = split_address(admin.address)[1]
    for port in sorted(listening, key=lambda port: (port != expected_port, port)):
        local = f"{_pick_host(listening[port])}:{port}"
        try:
            with admin.at(local, _LOCAL_SECONDS) as itself:
                boot_timestamp_ms = itself.runtime_info().boot_timestamp_ms
        except BrokerError:  # a port of another protocol
            continue
        if boot_timestamp_ms == info.boot_timestamp_ms:
            return True
        # The broker may have restarted since. It is asked again only here: that may take a second.
        if boot_timestamp_ms == admin.runtime_info().boot_timestamp_ms:
            return True
        raise BadInputError(
            f"{layout.root}: expected the store on which broker {admin.address} runs, found that another "
            f"one, at {local}, has the lock {layout.lock}: it is a slave's, or another broker's. Nothing was "
            "changed. Check the path, and run on that broker's host."
        )
    return _is_here(admin.address)


def _is_here(address: str) -> bool:
    """Return whether an address belongs to this host, by the addresses of this network namespace."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(split_address(address)[0], None)}
    except OSError:
        return False
    own_ips = {item.address.partition("%")[0] for items in psutil.net_if_addrs().values() for item in items}
    return bool(addresses) and addresses <= own_ips


def _pick_host(host: str) -> str:
    """Return the local address at which a listening process answers. Java's IPv6 sockets accept IPv4, too."""
    host = _LOOPBACK.get(host, host.removeprefix("::ffff:"))
    return f"[{host}]" if ":" in host else host


def _check_reaches_end(
    admin: BrokerAdmin, info: RuntimeInfo, layout: StoreLayout, files: Sequence[MappedFile]
) -> None:
    """:raises BadInputError: no file contains the newest message."""
    end = info.commitlog_max_offset
    holder = next((file for file in reversed(files) if file.base_offset < end), None)
    if end == info.commitlog_min_offset if holder is None else holder.end_offset >= end:
        return
    files_text = f"the last at offset {files[-1].base_offset}" if files else "none"
    raise BadInputError(
        f"{layout.root}: expected the store of broker {admin.address}, whose log ends at {end}, found other "
        f"files, {files_text}. Nothing was changed. Check the path, what is mounted there, and the address."
    )


def _first_frame(path: Path) -> bytes | None:
    """Return a segment's first frame; None if it doesn't begin with a message, or was just deleted."""
    try:
        with open_stored(path) as file:
            header = os.pread(file.fileno(), 8, 0)
            if len(header) < 8:
                return None
            size, magic = struct.unpack(">iI", header)
            if magic not in MESSAGE_MAGICS or size < MIN_MESSAGE_BYTES:
                return None
            return os.pread(file.fileno(), size, 0)
    except FileNotFoundError:
        return None


_WITHIN_A_FRAME = "IllegalArgumentException"
"""Java's error for an invalid length (DefaultMappedFile#selectMappedBuffer)."""


def frame_sha256(admin: BrokerAdmin, offset: int) -> str:
    """Return the SHA-256 of the frame that the broker has at ``offset``; "" if no message begins there.

    :raises BrokerError: the broker doesn't answer, or refuses to.
    """
    try:
        frame = admin.view_message(offset)
    except BrokerRefusedError as error:
        if _WITHIN_A_FRAME not in error.remark:
            raise
        frame = None
    return sha256(frame).hexdigest() if frame else ""


def ask_known_frame(admin: BrokerAdmin, state: HoldState, observed: Observed) -> Observed:
    """Add the digest of the frame that the broker now has at the offset of the hold's known message."""
    if not observed.min_offset <= state.frame_offset < observed.max_offset:
        return observed
    return replace(observed, frame_sha256=frame_sha256(admin, state.frame_offset))


def know_newest_frame(admin: BrokerAdmin, state: HoldState, observed: Observed) -> HoldState:
    """Return the hold's state with the digest of the newest sealed segment's first message."""
    sealed = [file.base_offset for file in observed.files if file.end_offset <= observed.max_offset]
    newest = max((base for base in sealed if base >= observed.min_offset), default=-1)
    if newest in (-1, state.frame_offset):
        return state
    digest = frame_sha256(admin, newest)
    return replace(state, frame_offset=newest, frame_sha256=digest) if digest else state


_NOTHING_WRITTEN = "Nothing was written."


def check_goes_on(
    slave: BrokerConfig, receipts: Sequence[Receipt], read_segment: Callable[[Receipt], bytearray]
) -> None:
    """Check that the master of a slave has the last archived message, so that its log continues the archive.

    The message contains its own physical offset, queue offset and store time. So if the master's log and the
    archived log both have this message, they have the same bytes before it.

    :param receipts: receipts of the segments with which the slave begins, oldest first.
    :raises RestoreError: the master has another message or none at this offset, or doesn't answer.
    """
    offset, message = _last_message(receipts, read_segment)
    try:
        with _reach_master(slave) as master:
            where = f"{slave.source}: master {master.address}"
            min_offset = master.runtime_info().commitlog_min_offset
            if min_offset > offset:
                raise RestoreError(
                    f"{where}: expected a log that begins before the last archived message, at physical "
                    f"offset {offset}, found that it begins at {min_offset}. A slave would wait for ever for "
                    f"bytes that the master no longer has. {_NOTHING_WRITTEN} Archive more of the master's "
                    "log first."
                )
            if (digest := frame_sha256(master, offset)) != sha256(message).hexdigest():
                text = "another message" if digest else "no message that begins at this offset"
                raise RestoreError(
                    f"{where}: expected the last archived message, at physical offset {offset}, found "
                    f"{text}. The master's log continues differently from the archived one, and a slave "
                    f"would differ from its master without any error. {_NOTHING_WRITTEN} Restore less "
                    f"(--to-offset {receipts[-1].base_offset}), or the lineage that the master has "
                    "(--lineage)."
                )
    except (BrokerError, NotOnBrokerError) as error:
        if isinstance(error, NotOnBrokerError):
            advice = "Start the master first; or, for a store without one, set brokerRole to ASYNC_MASTER."
        else:
            advice = (
                "Make sure that it answers. It is asked without an access key and without TLS: if it or its "
                "name server requires one (ACL, tls.server.mode=enforcing), allow such requests from this "
                "host meanwhile."
            )
        raise RestoreError(
            f"{slave.source}: brokerRole=SLAVE: expected an answer of the master, whose log must continue "
            f"the archived one, found that it can't be asked: {error} {_NOTHING_WRITTEN} {advice}"
        ) from error


def _reach_master(slave: BrokerConfig) -> BrokerAdmin:
    """Connect to a restored slave's master.

    :raises RestoreError: the settings name no master.
    """
    name_servers, name = (slave.raw.get(key, "").strip() for key in (NAME_SERVERS, NAME))
    if not (name_servers and name):
        raise RestoreError(
            f"{slave.source}: expected {NAME_SERVERS} and {NAME}, by which a slave's master is found "
            f"(brokerRole=SLAVE), found {NAME_SERVERS}={name_servers!r} and {NAME}={name!r}. "
            f"{_NOTHING_WRITTEN} Set both."
        )
    return reach_master(slave.raw, LiveBroker())


def _last_message(
    receipts: Sequence[Receipt], read_segment: Callable[[Receipt], bytearray]
) -> tuple[int, bytes]:
    """Return the last message's physical offset and bytes. A segment that is one blank frame is skipped.

    :raises RestoreError: no segment has a message.
    """
    for receipt in reversed(receipts):
        data = read_segment(receipt)
        frames = scan_segment(data, receipt.base_offset)
        for row in (frames.kind == FrameKind.MESSAGE).nonzero()[0][-1:]:
            offset = int(frames.physical_offset[row])
            at = offset - receipt.base_offset
            return offset, bytes(data[at : at + int(frames.size_bytes[row])])
    raise RestoreError(
        f"{receipts[0].log}: expected a message in the segments with which a slave begins, found none. "
        f"{_NOTHING_WRITTEN} Restore more of the log."
    )
