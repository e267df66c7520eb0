"""Jobs run in the worlds of the service, on virtual time."""

from tests.service.conftest import build, pytest_asyncio_loop_factories, world

__all__ = ["build", "pytest_asyncio_loop_factories", "world"]
