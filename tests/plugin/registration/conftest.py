"""What a registration is made of: who hears of its events, and the servicer that it registers."""

import pytest

from tests.plugin.kubelet_server import Plugin, SeenEvents


@pytest.fixture
def seen_events():
    return SeenEvents()


@pytest.fixture
def plugin():
    return Plugin()
