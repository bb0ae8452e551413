"""Reaching the master of a store."""

from __future__ import annotations

from storage_engine.exceptions import BadInputError, NotOnBrokerError
from storage_engine.model.live import LiveBroker
from storage_engine.rocketmq.remoting.access import Access, Tls
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.remoting.name_server import NameServers
from storage_engine.rocketmq.remoting.signature import Credentials


def access_of(live: LiveBroker) -> Access:
    """Credentials and TLS as a store's settings say."""
    tls = Tls(
        ca_file=live.tls_ca_file or None,
        server_name=live.tls_server_name or None,
        certificate_file=live.tls_certificate_file or None,
        verify=live.tls_verify,
    )
    return Access(
        credentials=Credentials(live.access_key, live.secret_key) if live.access_key else None,
        tls=tls if live.tls else None,
    )


def reach(live: LiveBroker) -> BrokerAdmin:
    """The broker's admin interface; by name servers, it is the master that is registered now.

    :raises BadInputError: neither an address, nor name servers with a broker's name.
    :raises NotOnBrokerError: name servers don't know the broker, or no master of it.
    :raises BrokerUnavailableError: no name server answers.
    """
    access = access_of(live)
    if live.address:
        return BrokerAdmin(live.address, access)
    if not (live.name_servers and live.broker_name):
        raise BadInputError(
            "A store beside its broker: expected the broker's address, or name servers and the broker's "
            "name, found neither. Give host:port of the broker's listen port."
        )
    master = NameServers(live.name_servers, access).broker(live.broker_name).master
    if master is None:
        raise NotOnBrokerError(
            f"Name servers {live.name_servers}: expected a master of broker {live.broker_name!r}, found none "
            "registered. Nothing can be held or released without one; start it, or wait for an election."
        )
    return BrokerAdmin(master, access)
