"""Signs requests with an access key, as brokers with authentication on (``authenticationEnabled``) ask for.

Releases before 5.3.3 knew the same signature as ``aclEnable``; 5.3.3 has that setting but no longer reads it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field


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
