"""Signatures of requests; that brokers accept them, the tests with a real one show."""

from __future__ import annotations

import base64
import hashlib
import hmac

from storage_engine.rocketmq.remoting.connection import Credentials, sign

CREDENTIALS = Credentials("user", "secret")


def test_values_are_signed_in_the_order_of_their_names_then_the_body() -> None:
    signed = sign({"topic": "t", "Zone": "z", "queueId": "3"}, b"body", CREDENTIALS)
    digest = hmac.digest(b"secret", b"user" + b"z" + b"3" + b"t" + b"body", hashlib.sha1)
    assert signed["Signature"] == base64.b64encode(digest).decode()
    assert signed["AccessKey"] == "user"


def test_order_in_which_fields_are_given_does_not_matter() -> None:
    assert sign({"a": "1", "b": "2"}, b"", CREDENTIALS) == sign({"b": "2", "a": "1"}, b"", CREDENTIALS)


def test_secret_is_never_shown() -> None:
    assert "secret" not in repr(CREDENTIALS)
    assert "secret" not in str(sign({}, b"", CREDENTIALS))
