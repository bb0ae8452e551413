"""A running broker's store in its parts: the connection, the files, and what is remembered of the hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.hold import HoldMemory
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.live.connect import reach
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.store.broker import RocketMQBrokerStore


class Session:
    """One process' connection with a store's broker: opened once, led to a new master, and closed.

    Shared by all looks at a store that came of one opening, so that closing any of them closes it.

    :param live: how the broker is reached.
    :raises StorageEngineError: as :func:`reach` does.
    """

    def __init__(self, live: LiveBroker) -> None:
        self._live = live
        self._admin = reach(live)
        self._former: list[BrokerAdmin] = []

    @property
    def admin(self) -> BrokerAdmin:
        """Return the master as it was known last."""
        return self._admin

    def renew(self) -> None:
        """Ask which broker is the master by now. Where it is the same one, the connection stays.

        :raises StorageEngineError: as :func:`reach` does; the master is the one of before then.
        """
        admin = reach(self._live)
        if admin.address != self._admin.address:
            self._admin.close()
            # Who has looked at that broker goes on asking it, and not another one, which connects again.
            self._former.append(self._admin)
            self._admin = admin

    def close(self) -> None:
        """End the connection, and those with former masters; the next request opens another."""
        for admin in (self._admin, *self._former):
            admin.close()


@dataclass(frozen=True, slots=True)
class LiveParts:
    """A running broker's store in its parts.

    :param session: has the connection, and ends it.
    :param admin: the broker that was the master when the store was looked at.
    :param files: the store's files, by the broker's live settings.
    :param settings: those settings, as the broker says them.
    :param opened_by: how it is reached, and the broker's config file if it was named.
    """

    session: Session
    admin: BrokerAdmin
    files: RocketMQBrokerStore
    settings: Mapping[str, str]
    live: LiveBroker
    memory: HoldMemory | None
    opened_by: StoreSettings

    @property
    def layout(self) -> StoreLayout:
        """Return where the store's files lie."""
        return self.files.files.layout

    @property
    def root(self) -> Path:
        """Return the store's root directory."""
        return self.layout.root

    @property
    def broker_conf(self) -> str | None:
        """The broker's config file as it is named here; None: none was named."""
        return self.opened_by.broker_conf
