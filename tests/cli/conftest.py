"""Running verbs as somebody at a shell would, with and without a service."""

import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scrubber import cli
from scrubber.core.model import State
from tests.cli.ward import examine, kubelet, started
from tests.live import Service

__all__ = ["autoclave", "examine", "gpu", "kubelet", "mortal", "service", "started"]

STATES = [it.value for it in State]
GPUS = 12  # more than the tests of a module that leave one dirty or quarantined


@pytest.fixture
def autoclave(request):
    """Run ``autoclave`` in this process: with its arguments, and what the environment says."""

    def run(*args: object, **env: str) -> Result:
        if "service" in request.fixturenames:
            env = {"AUTOCLAVE_RUN_DIR": str(request.getfixturevalue("service").run_dir), **env}
        return CliRunner().invoke(cli.cli, list(map(str, args)), prog_name="autoclave", env=env)

    return run


@pytest.fixture(scope="module")
def service():
    """One service for all tests of a module."""
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as root:
        service = Service(Path(root), GPUS)
        yield service
        service.stop()


@pytest.fixture(scope="module")
def _clean() -> list[int]:
    """GPUs that no test has left dirty or quarantined."""
    return list(range(GPUS))


@pytest.fixture
def gpu(service, _clean):
    """A clean GPU."""
    index = _clean.pop()
    service.settled(index, "clean")
    yield index
    if service.settled(index, *STATES).state == "clean":
        _clean.append(index)


@pytest.fixture
def mortal(short_tmp):
    """A service that a test may kill."""
    service = Service(short_tmp, 1)
    yield service
    service.stop()
