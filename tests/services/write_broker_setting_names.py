"""Write ``storage_engine/rocketmq/setting_names.txt``: every key of broker.conf that some release reads.

A broker takes a key for each setter of one argument of its configuration classes (MixAll#properties2Object).

    python tests/services/write_broker_setting_names.py DIRECTORY_OF_JARS
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NAMES = Path(__file__).parents[2] / "storage_engine" / "rocketmq" / "setting_names.txt"
CLASSES = {
    "common": (
        "org.apache.rocketmq.common.BrokerConfig",
        "org.apache.rocketmq.common.BrokerIdentity",
    ),
    "store": ("org.apache.rocketmq.store.config.MessageStoreConfig",),
    "remoting": (
        "org.apache.rocketmq.remoting.netty.NettyServerConfig",
        "org.apache.rocketmq.remoting.netty.NettyClientConfig",
    ),
    "auth": ("org.apache.rocketmq.auth.config.AuthConfig",),
    "tiered-store": (
        "org.apache.rocketmq.tieredstore.MessageStoreConfig",
        "org.apache.rocketmq.tieredstore.common.TieredMessageStoreConfig",
    ),
}
_READ_BY_ITSELF = ("rmqAddressServerDomain", "rmqAddressServerSubGroup")
"""BrokerStartup#properties2SystemEnv."""
_SETTER = re.compile(r"public void set(\w)(\w*)\((?:int|long|double|boolean|float|java\.lang\.\w+)\);")


def names_in(jar: Path, classes: tuple[str, ...]) -> Iterator[str]:
    """Yield the keys for which the classes of a jar have setters; a class that a release lacks has none."""
    for name in classes:
        shown = subprocess.run(
            ["javap", "-public", "-classpath", jar, name], capture_output=True, text=True, check=False
        )
        for first, rest in _SETTER.findall(shown.stdout):
            yield first.lower() + rest


def main(jars: Path) -> None:
    names = set(_READ_BY_ITSELF)
    for module, classes in CLASSES.items():
        for jar in sorted(jars.rglob(f"rocketmq-{module}-[0-9]*.jar")):
            names.update(names_in(jar, classes))
    NAMES.write_text("".join(f"{name}\n" for name in sorted(names)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
