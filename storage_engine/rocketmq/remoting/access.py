"""How brokers and name servers are reached: timeouts, credentials, TLS, addresses.

Signs requests with an access key, as brokers with authentication on (``authenticationEnabled``) ask for.
Releases before 5.3.3 knew the same signature as ``aclEnable``; 5.3.3 has that setting but no longer reads it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError


@dataclass(frozen=True, slots=True)
class Tls:
    """How the peer is known; brokers take TLS unless ``tls.server.mode`` is disabled.

    :param ca_file: PEM file of who signed the broker's certificate; None: the system's authorities.
    :param server_name: name that the certificate must bear; None: the host of the address.
    :param certificate_file: PEM file of our own certificate, for a broker that wants one.
    :param key_file: PEM file of its key; None: in ``certificate_file``.
    :param verify: False trusts anybody, as a broker in TLS test mode needs, which makes up its certificate.
    """

    ca_file: str | None = None
    server_name: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """:raises BadInputError: a file is missing or isn't what it should be."""
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
    """How brokers and name servers are spoken to.

    :param request_timeout_seconds: from the first byte of a request to the last of its answer.
    """

    connect_timeout_seconds: float = 5.0
    request_timeout_seconds: float = 10.0
    credentials: Credentials | None = None
    tls: Tls | None = None


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` to its parts; an IPv6 host may stand in brackets.

    :raises BadInputError: it is something else.
    """
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise BadInputError(f"Address {address!r}: expected host:port, as in 10.0.0.1:10911.")
    return host, int(port)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of a broker: its name (access key) and password (secret key), which no message ever shows."""

    access_key: str
    secret_key: str = field(repr=False)


def sign(fields: Mapping[str, str], body: bytes, credentials: Credentials) -> dict[str, str]:
    """The fields of a request, with who asks and the signature (AclClientRPCHook, AclSigner).

    Signed are the values of all fields, the access key's too, in the order of their names, then the body.
    """
    signed = {**fields, "AccessKey": credentials.access_key}
    content = "".join(signed[name] for name in sorted(signed)).encode() + body
    digest = hmac.new(credentials.secret_key.encode(), content, hashlib.sha1).digest()
    return {**signed, "Signature": base64.b64encode(digest).decode("ascii")}
