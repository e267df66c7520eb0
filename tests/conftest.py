"""Guards around every test: no network, no home directory, no default directory, nothing of the caller's environment.

``make test`` runs few random examples, always the same ones, and no test with the mark ``night``. ``--night`` runs many
examples, every mutant and the tests with that mark. Tests that need a GPU run with ``-m gpu`` only,
and tests that build the image with ``-m image`` only.
"""

import gc
import ipaddress
import os
import platform
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import structlog
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests import default_dirs, forking, strays
from tests.pod_groups import running_pod

__all__ = ["running_pod"]  # a fixture

# Rooms whose tests start services and plugins and do not test the start itself.
ROOT = Path(__file__).parent
FORKS = {
    "api", "cli", "fence", "flows", "metrics", "plugin", "receipts", "test_daemon.py", "test_wiring.py",
}  # fmt: skip


class OutOfBoundsError(RuntimeError):
    """A test reached for the network or the machine. Not an OSError: code that retries those must not swallow it."""


def _is_local(host: object) -> bool:
    if host in (None, "", b"", "localhost", b"localhost"):
        return True
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host)).is_loopback
    except ValueError:
        return False


def _refuse_network(event: str, args: tuple[object, ...]) -> None:
    match event, args:
        case (("socket.connect" | "socket.sendto"), (socket.socket(family=family), (host, *_))):
            if family in (socket.AF_INET, socket.AF_INET6) and not _is_local(host):
                raise OutOfBoundsError(f"a test must not reach the network: {event} to {host!r}")
        case "socket.getaddrinfo", (host, *_) if not _is_local(host):
            raise OutOfBoundsError(f"a test must not reach the network: it looked up {host!r}")
        case _:
            pass


def _refuse_default_directories(event: str, args: tuple[object, ...]) -> None:
    if event.startswith(("open", "os.")) and args and str(args[0]).startswith(default_dirs.PLACES):
        raise OutOfBoundsError(f"a test must not use a default directory: {event} of {args[0]}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--night", action="store_true", help="many random examples, every mutant, all rehearsals")
    parser.addoption("--golden", action="store_true", help="write the words of tests/cli/golden again")
    parser.addoption("--soak", action="store_true", help="ten minutes of the campaign, a thousand pods")
    parser.addoption("--all-rights", action="store_true", help="fail if a test is skipped for want of rights")


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("gate", max_examples=50, derandomize=True, deadline=None)
    settings.register_profile("night", max_examples=2000, deadline=None)
    settings.load_profile("night" if config.getoption("--night") else "gate")
    if not config.getoption("--night"):
        # Hypothesis also tries the constants of all modules that were imported so far. Then other tests in the same
        # process, and each change of a constant, would change the examples of the gate.
        providers._get_local_constants = Constants  # there is no public setting
    # Nothing can be opened under a file, so each use of the home directory fails, also in child processes.
    os.environ["HOME"] = os.devnull
    for name in [name for name in os.environ if name.startswith(("AUTOCLAVE_", "XDG_"))]:
        del os.environ[name]
    if "cluster" not in config.getoption("-m"):  # the tests of a real node have a machine and a network of their own
        os.environ.update(default_dirs.NOWHERE)
        sys.addaudithook(_refuse_default_directories)
        sys.addaudithook(_refuse_network)  # sees every connect of this process, whichever library asks for it
    # Hundreds of processes are started from here: each would compile all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A shell ignores SIGINT for what it runs in the background; programs that a test starts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the tests of a real node unless they are asked for: they need large libraries."""
    return True if collection_path == ROOT / "cluster" and "cluster" not in config.getoption("-m") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep tests with a mark for those who ask: ``-m gpu``, ``-m image``; ``night`` is for the night and the soak."""
    night = config.getoption("--night") or config.getoption("--soak")
    asked = {"gpu": "gpu" in config.getoption("-m"), "image": "image" in config.getoption("-m"), "night": night}
    left = {item for item in items for mark, wanted in asked.items() if not wanted and item.get_closest_marker(mark)}
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=list(left))


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test leaves a loop device, a control group or a fence on the machine: else the last test fails."""
    with strays.watched(tmp_path_factory.getbasetemp()) as run:
        yield
        forking.close()
        left = run.left() if run is not None else []
    assert not left, f"these tests have left on the machine: {', '.join(left)}"


@pytest.fixture(scope="module", autouse=True)
def _forks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start services and plugins as forks, which is faster."""
    with forking.forking(forking.Popen) if request.path.relative_to(ROOT).parts[0] in FORKS else nullcontext():
        yield


@pytest.fixture(autouse=True)
def _plain_logs() -> None:
    """Each test begins with the same logs, whatever another test set up. Colours and columns cost much time."""
    structlog.reset_defaults()
    structlog.configure(processors=[structlog.processors.add_log_level, structlog.processors.KeyValueRenderer()])


@pytest.fixture
def executed() -> Iterator[None]:
    """Start services and plugins by a new interpreter, for a test that looks at the process itself."""
    with forking.forking(forking.EXECUTED):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Name the Python and the cost; after the reasons, count the skips for want of rights, which have these words."""
    yield
    spent = sum(os.times()[:4])  # of this process, and of all that it has started and that have ended
    terminalreporter.write_line(f"Ran on Python {platform.python_version()}, in {spent:.0f} s of processor.")
    if count := _for_want_of_rights(terminalreporter):
        terminalreporter.write_line(
            f"Skipped for want of rights: {count}. To run all tests, run make test as root in a new clone, "
            "on a machine where root can make control groups and namespaces."
        )


def _for_want_of_rights(reporter: pytest.TerminalReporter) -> int:
    """How many tests were skipped that root could have run."""
    return sum("takes root" in str(it.longrepr) for it in reporter.stats.get("skipped", ()))


@pytest.hookimpl(tryfirst=True)  # before the reporter says how it ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With ``--all-rights``, a test that was skipped for want of rights has failed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--all-rights") and reporter is not None and _for_want_of_rights(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_finish() -> None:
    """Collected tests stay until the end. Without this, each search for garbage walks through all of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory for unix sockets, whose paths end at 107 bytes; ``tmp_path`` is longer than that."""
    path = Path(tempfile.mkdtemp(prefix="ac-", dir="/tmp"))
    yield path
    shutil.rmtree(path)
