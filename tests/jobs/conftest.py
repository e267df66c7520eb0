"""Jobs run in the worlds of the service, on virtual time. A driver that blocks its caller needs threads and a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.service.conftest import begin, build, world
from tests.service.virtual import VirtualLoop

__all__ = ["begin", "build", "world"]

WITH_THREADS = "test_driver_release.py"


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of each file."""
    return {"real": asyncio.new_event_loop} if item.path.name == WITH_THREADS else {"virtual": VirtualLoop}
