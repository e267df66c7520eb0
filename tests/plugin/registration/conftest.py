"""What a registration is made of: who hears of its events, and the servicer that it registers."""

import pytest

from tests.plugin.kubelet_server import Heard, Plugin


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def plugin():
    return Plugin()
