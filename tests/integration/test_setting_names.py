"""The keys that a broker reads, as its own classes have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.jars import JAVA_PROJECTS, class_path
from tests.services.write_broker_setting_names import CLASSES, NAMES, names_in

pytestmark = pytest.mark.integration


@pytest.mark.again
def test_each_key_that_the_broker_has_a_setter_for_is_known() -> None:
    jars = {
        Path(jar).name.rpartition("-")[0]: Path(jar) for jar in class_path(JAVA_PROJECTS).split(os.pathsep)
    }
    read = {
        name
        for module, classes in CLASSES.items()
        if (jar := jars.get(f"rocketmq-{module}")) is not None
        for name in names_in(jar, classes)
    }
    assert {"fileReservedTime", "brokerIP1", "listenPort", "deleteWhen"} <= read
    assert read <= set(NAMES.read_text().split())
