"""A broker that takes TLS only, knows its users, and answers in binary headers."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from demo.brokers.reading import ReadingAdmin
from storage_engine.rocketmq.remoting.command import SerialiseType
from storage_engine.rocketmq.remoting.connection import Access, Credentials, Tls
from tests.integration.broker import BROKER_MAIN, Broker, running_broker


@dataclass(frozen=True)
class Secured:
    """
    :param access: its super user's.
    """

    broker: Broker
    access: Access

    def ask(self, access: Access) -> ReadingAdmin:
        return ReadingAdmin(self.broker.client.address, access)

    def as_user(self, access_key: str, secret_key: str) -> Access:
        return replace(self.access, credentials=Credentials(access_key, secret_key))


@contextmanager
def secured_broker(
    store: Path,
    work: Path,
    name_server_port: int,
    overrides: Mapping[str, object] | None = None,
    *,
    main_class: str = BROKER_MAIN,
) -> Iterator[Secured]:
    """Such a broker for the duration of the block."""
    pem, key = certificate(work)
    access = Access(credentials=Credentials("admin", "admin-secret"), tls=Tls(ca_file=str(pem)))
    authentication = "org.apache.rocketmq.auth.authentication.provider"
    authorization = "org.apache.rocketmq.auth.authorization.provider"
    settings = {
        "brokerName": "broker-secured",
        # Asked how it is, a broker walks its whole timer wheel.
        "timerWheelEnable": False,
        "authenticationEnabled": True,
        "authenticationProvider": f"{authentication}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{authentication}.LocalAuthenticationMetadataProvider",
        "authorizationEnabled": True,
        "authorizationProvider": f"{authorization}.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{authorization}.LocalAuthorizationMetadataProvider",
        "initAuthenticationUser": json.dumps({"username": "admin", "password": "admin-secret"}),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": "inner", "secretKey": "inner-secret"}
        ),
        **(overrides or {}),
    }
    jvm_options = (
        "-Dtls.server.mode=enforcing",
        # Its name server has no TLS.
        "-Dtls.enable=false",
        "-Dtls.test.mode.enable=false",
        f"-Dtls.config.file={work / 'none'}",
        f"-Dtls.server.certPath={pem}",
        f"-Dtls.server.keyPath={key}",
        f"-Drocketmq.serialize.type={SerialiseType.ROCKETMQ.name}",
    )
    with running_broker(
        store, work, name_server_port, settings, access=access, jvm_options=jvm_options, main_class=main_class
    ) as broker:
        yield Secured(broker, access)


def certificate(
    work: Path, valid_for: timedelta = timedelta(hours=1), host: str = "127.0.0.1"
) -> tuple[Path, Path]:
    """A certificate for an address that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=2))
        .not_valid_after(now + valid_for)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), False)
        .sign(key, hashes.SHA256())
    )
    paths = work / "broker.pem", work / "broker.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return paths
