"""One process' connection with the broker of a store: opened once, led to a new master, and closed."""

from __future__ import annotations

from storage_engine.model.live import LiveBroker
from storage_engine.rocketmq.live.connect import reach
from storage_engine.rocketmq.remoting.admin import BrokerAdmin


class Session:
    """Shared by all looks at a store that came of one opening, so that closing any of them closes it.

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
        """Ask who the master is by now. Where it is the same one, the connection stays.

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
