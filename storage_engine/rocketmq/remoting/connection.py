"""A connection to a broker or name server, with timeouts, TLS and signed requests.

A request takes at most the connect timeout plus the request timeout. If a read is repeated, both requests
together take at most twice as long. The timeouts don't include the lookup of a host's name, which takes as
long as the system's resolver allows. A connection is closed after any failure, so that no late answer is
taken for the answer to another request.

Requests are signed with an access key, which brokers require if authentication is on
(``authenticationEnabled``; before 5.3.3 ``aclEnable``, which 5.3.3 still has but no longer reads).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from storage_engine.core.wording import reason_text, shorten
from storage_engine.exceptions import (
    BadInputError,
    BrokerError,
    BrokerProtocolError,
    BrokerRefusedError,
    BrokerUnavailableError,
)
from storage_engine.rocketmq.remoting import command
from storage_engine.rocketmq.remoting.command import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    FrameError,
    RemotingCommand,
    decode,
    encode,
    frame_length,
)


@dataclass(frozen=True, slots=True)
class Tls:
    """Settings of TLS, which brokers accept unless ``tls.server.mode`` is disabled.

    :param ca_file: PEM file of the authority that signed the broker's certificate; None for the system's.
    :param server_name: name that the certificate must have; None for the host of the address.
    :param certificate_file: PEM file of the client's certificate, for a broker that requires one.
    :param key_file: PEM file of the client's key; None if it is in ``certificate_file``.
    :param verify: False to trust any certificate, such as the one that a broker in TLS test mode generates.
    """

    ca_file: str | None = None
    server_name: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Create the TLS context of a connection.

        :raises BadInputError: a file is missing or has the wrong content.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except OSError as error:
            files = ", ".join(filter(None, (self.ca_file, self.certificate_file, self.key_file)))
            raise BadInputError(
                f"TLS files {files}: expected readable PEM files with certificates and a key, found: "
                f"{reason_text(error)}."
            ) from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials and TLS for brokers and name servers.

    :param request_timeout_seconds: time from the first byte of a request to the last byte of its answer.
    """

    connect_timeout_seconds: float = 5.0
    request_timeout_seconds: float = 10.0
    credentials: Credentials | None = None
    tls: Tls | None = None


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` into its parts. An IPv6 host may be in brackets.

    :raises BadInputError: the text is something else.
    """
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise BadInputError(
            f"Address {address!r}: expected host:port, as in 10.0.0.1:10911. Nothing was asked or "
            "changed. Correct the address."
        )
    return host, int(port)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A broker's user: name (access key) and password (secret key). No message shows the password."""

    access_key: str
    secret_key: str = field(repr=False)


def sign(fields: Mapping[str, str], body: bytes, credentials: Credentials) -> dict[str, str]:
    """Return a request's fields with access key and signature added (AclClientRPCHook, AclSigner).

    The signature covers the values of all fields in the order of their names, then the body.
    """
    signed = {**fields, "AccessKey": credentials.access_key}
    content = "".join(signed[name] for name in sorted(signed)).encode() + body
    digest = hmac.new(credentials.secret_key.encode(), content, hashlib.sha1).digest()
    return {**signed, "Signature": base64.b64encode(digest).decode("ascii")}


BUSY_PAUSE_SECONDS: Final = 0.2
"""Pause before a read is repeated because the broker was busy."""
REMARK_CHARACTERS: Final = 1000
"""Longest part of a peer's remark in errors, reports and the journal. Some brokers send a stack trace."""
_CHUNK_BYTES: Final = 1 << 20
"""Largest amount of memory that is reserved for bytes before they are received."""


class Connection:
    """Connection to one peer, opened by the first request. Threads may share it, and wait for each other.

    :raises BadInputError: the address or a TLS file can't be used.
    """

    def __init__(self, address: str, access: Access | None = None) -> None:
        self.address = address
        self._host, self._port = split_address(address)
        self._access = access or Access()
        self._tls = self._access.tls.context() if self._access.tls else None
        self._name = (self._access.tls and self._access.tls.server_name) or self._host
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def access_elsewhere(self, timeout_seconds: float) -> Access:
        """Return credentials and TLS for another address, at which the same certificate name is expected."""
        tls = self._access.tls
        return replace(
            self._access,
            connect_timeout_seconds=timeout_seconds,
            request_timeout_seconds=timeout_seconds,
            tls=tls and replace(tls, server_name=self._name),
        )

    def close(self) -> None:
        """Close the connection. The next request opens a new one."""
        with self._lock:
            self._close()

    def __del__(self) -> None:
        # A store that is opened for one step is never closed explicitly.
        if getattr(self, "_socket", None) is not None:
            self._close()

    def read(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        *,
        accept: Collection[int] = (command.SUCCESS,),
        max_bytes: int = MAX_FRAME_BYTES,
    ) -> RemotingCommand:
        """Send a request that changes nothing. Repeat it once if the connection broke or the peer was busy.

        :param fields: the request's extFields, which are sent as texts.
        :param accept: response codes that count as an answer.
        :param max_bytes: size of the largest acceptable answer.
        :raises BrokerUnavailableError: no answer came in time.
        :raises BrokerProtocolError: the answer is malformed.
        :raises BrokerRefusedError: the answer has another code.
        """
        with self._lock:
            was_open = self._socket is not None
            try:
                answer = self._ask(code, fields or {}, max_bytes)
            except BrokerUnavailableError as error:
                # The peer has closed an idle connection, or was restarted.
                if not was_open or isinstance(error.__cause__, TimeoutError):
                    raise
                answer = self._ask(code, fields or {}, max_bytes)
            if answer.code == command.SYSTEM_BUSY and answer.code not in accept:
                time.sleep(BUSY_PAUSE_SECONDS)
                answer = self._ask(code, fields or {}, max_bytes)
        return self._check_code(code, answer, accept, may_have_acted=False)

    def act(
        self, code: int, fields: Mapping[str, object] | None = None, *, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request for a change once, over a new connection.

        :raises BrokerError: see :meth:`read`. ``may_have_acted`` tells whether the change may have been made.
        """
        with self._lock:
            self._close()
            peer = self._open(code)
            try:
                answer = self._exchange(peer, code, fields or {}, body, MAX_FRAME_BYTES)
            except BrokerError as error:
                error.may_have_acted = True
                raise
        return self._check_code(
            code, answer, (command.SUCCESS,), may_have_acted=answer.code not in command.NOT_BEGUN
        )

    def _check_code(
        self, code: int, answer: RemotingCommand, accept: Collection[int], *, may_have_acted: bool
    ) -> RemotingCommand:
        if answer.code in accept:
            return answer
        remark = shorten(" ".join(answer.remark.split()), REMARK_CHARACTERS) or "no remark"
        remedy = command.REMEDIES.get(answer.code, "Look into the broker's log for this request.")
        raise BrokerRefusedError(
            f"{self.what(code)}: expected code {' or '.join(map(str, accept))}, found {answer.code} "
            f"({remark}). {remedy}",
            code=answer.code,
            remark=shorten(answer.remark, REMARK_CHARACTERS),
            may_have_acted=may_have_acted,
        )

    def _ask(self, code: int, fields: Mapping[str, object], max_bytes: int) -> RemotingCommand:
        return self._exchange(self._open(code), code, fields, b"", max_bytes)

    def _exchange(
        self, peer: socket.socket, code: int, fields: Mapping[str, object], body: bytes, max_bytes: int
    ) -> RemotingCommand:
        try:
            return self._send_and_receive(peer, code, fields, body, max_bytes)
        except BaseException:
            self._close()
            raise

    def _send_and_receive(
        self, peer: socket.socket, code: int, fields: Mapping[str, object], body: bytes, max_bytes: int
    ) -> RemotingCommand:
        self._opaque += 1
        texts = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in fields.items()
        }
        if self._access.credentials:
            texts = sign(texts, body, self._access.credentials)
        request = encode(RemotingCommand(code, self._opaque, fields=texts, body=body))
        deadline = time.monotonic() + self._access.request_timeout_seconds
        try:
            peer.settimeout(self._access.request_timeout_seconds)
            peer.sendall(request)
            length = frame_length(_receive(peer, LENGTH_BYTES, deadline), max_bytes)
            answer = decode(_receive(peer, length, deadline))
        except FrameError as error:
            raise BrokerProtocolError(
                f"{self.what(code)}: {error}. Check that a RocketMQ broker or name server listens there, "
                "and whether it uses TLS."
            ) from error
        except TimeoutError as error:
            raise BrokerUnavailableError(
                f"{self.what(code)}: expected an answer within {self._access.request_timeout_seconds:g} s, "
                "found none or an incomplete one. Check the broker's load and the network, or raise the "
                "timeout."
            ) from error
        except OSError as error:
            hint = ". With tls.server.mode=enforcing it closes connections without TLS"
            if self._tls is not None:
                hint = ", and whether it requires a client certificate"
            raise BrokerUnavailableError(
                f"{self.what(code)}: expected an answer, found the connection broken "
                f"({reason_text(error)}). Check that the broker runs{hint}."
            ) from error
        if not answer.is_response or answer.opaque != self._opaque:
            raise BrokerProtocolError(
                f"{self.what(code)}: expected the response to request {self._opaque}, found flag "
                f"{answer.flag} and number {answer.opaque}. Check that a RocketMQ broker or name server "
                "listens there."
            )
        return answer

    def _open(self, code: int) -> socket.socket:
        if self._socket is None:
            self._socket = self._connect(code)
        return self._socket

    def _connect(self, code: int) -> socket.socket:
        timeout = self._access.connect_timeout_seconds
        try:
            plain = socket.create_connection((self._host, self._port), timeout)
        except OSError as error:
            raise BrokerUnavailableError(
                f"{self.what(code)}: expected a connection within {timeout:g} s, found: "
                f"{reason_text(error)}. Check that the broker runs, and that this host can reach its address."
            ) from error
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=self._name)
        except OSError as error:
            plain.close()
            raise self._no_tls(code, error) from error
        except BaseException:
            plain.close()
            raise

    def _no_tls(self, code: int, error: OSError) -> BrokerError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return BrokerProtocolError(
                f"{self.what(code)}: expected a certificate for {self._name} that this host trusts, found: "
                f"{error.verify_message}. Set the certificate's authority (ca_file) and name (server_name)."
            )
        if isinstance(error, ssl.SSLError):
            return BrokerProtocolError(
                f"{self.what(code)}: expected a TLS handshake, found: {error}. Check tls.server.mode of the "
                "broker, and whether it requires a client certificate."
            )
        return BrokerUnavailableError(
            f"{self.what(code)}: expected a TLS handshake within {self._access.connect_timeout_seconds:g} "
            f"s, found: {error}. Check that the broker runs. With tls.server.mode=disabled it closes TLS "
            "connections."
        )

    def what(self, code: int) -> str:
        """Return the peer's address and the request, with which an error begins."""
        return f"{self.address}, request {code} ({command.NAMES.get(code, 'unnamed')})"

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._opaque = None, 0


def _receive(peer: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError(f"{size - len(data)} of {size} bytes missing")
        peer.settimeout(remaining)
        chunk = peer.recv(min(size - len(data), _CHUNK_BYTES))
        if not chunk:
            raise ConnectionError(f"closed by the peer with {size - len(data)} of {size} bytes missing")
        data += chunk
    return bytes(data)
