"""Running verbs as somebody at a shell would, with and without a service."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autoclave import cli
from tests.live import Service

GPUS = 40  # at least as many as tests that ask for one


@pytest.fixture
def autoclave(request):
    """Run ``autoclave`` in this process: with its arguments, and what the environment says."""

    def run(*args: object, **env: str) -> Result:
        for name in {"service", "own_service"} & {*request.fixturenames}:
            env = {"AUTOCLAVE_RUN_DIR": str(request.getfixturevalue(name).run_dir), **env}
        return CliRunner().invoke(cli.cli, list(map(str, args)), prog_name="autoclave", env=env, catch_exceptions=False)

    return run


@pytest.fixture(scope="module")
def service():
    """One service for all tests of a module; each takes a GPU of its own."""
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as root:
        service = Service(Path(root), GPUS)
        yield service
        service.stop()


@pytest.fixture(scope="module")
def _unused() -> Iterator[int]:
    return iter(range(GPUS))


@pytest.fixture
def gpu(service, _unused):
    """A clean GPU that no other test touches."""
    index = next(_unused)
    service.settled(index, "clean")
    return index


@pytest.fixture
def two_gpus(service, _unused):
    """Two clean GPUs beside ``gpu``."""
    more = (next(_unused), next(_unused))
    for index in more:
        service.settled(index, "clean")
    return more


@pytest.fixture
def own_service(short_tmp):
    """A service that a test may kill."""
    service = Service(short_tmp, 1)
    yield service
    service.stop()
