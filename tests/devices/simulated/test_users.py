"""The list of users that the driver of simulated GPUs keeps."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scrubber.devices.base import DeviceError
from scrubber.devices.simulated.simulated_backend import Users
from tests import few_rights
from tests.few_rights import takes_setpriv
from tests.node.open_programs import FORKING, IN_TRANSIT, MAP, RESTLESS, WRITE
from tests.patience import WITHIN

GPU = "GPU-a"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    path.write_bytes(bytes(8192))
    return path


def listed(users: Users, file: Path) -> frozenset[int] | None:
    """None: it cannot be told."""
    try:
        return users.listed(GPU, [str(file)])
    except DeviceError:
        return None


@pytest.mark.parametrize("code", [WRITE, MAP.format(flags=1)], ids=["open", "map"])
def test_a_user_is_listed_until_it_ends(file: Path, launch, code: str) -> None:
    users = Users(Path("/proc"))
    assert listed(users, file) == frozenset()
    one = launch(code, file)
    assert listed(users, file) == frozenset({one.pid})
    one.kill()
    one.wait()
    other = launch(code, file)
    assert listed(users, file) == frozenset({other.pid})
    other.kill()
    other.wait()
    assert listed(users, file) == frozenset()


@pytest.mark.parametrize("code", [WRITE, MAP.format(flags=1)], ids=["open", "map"])
def test_a_worker_hides_no_one_who_comes_beside_it(file: Path, launch, code: str) -> None:
    """A worker is a descendant of the service: here, of this process."""
    users, worker = Users(Path("/proc")), launch(WRITE, file)
    assert listed(users, file) == frozenset({worker.pid})
    guest = launch(code, file)
    assert listed(users, file) == frozenset({worker.pid, guest.pid})


def test_an_open_file_that_no_process_shows_is_unknown(file: Path, launch) -> None:
    users, holder = Users(Path("/proc")), launch(IN_TRANSIT, file)
    assert listed(users, file) is None
    holder.kill()
    holder.wait()
    assert listed(users, file) == frozenset()


ASK = """
import sys
from pathlib import Path
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated.simulated_backend import Users
try:
    print(sorted(Users(Path("/proc")).listed("GPU", sys.argv[1:])))
except DeviceError:
    print(None)
"""


@takes_setpriv
def test_a_question_that_the_kernel_refuses_has_no_answer(file: Path, launch) -> None:
    """A tenant may change its GPU's file. Only its owner may ask for a lease, or who has CAP_LEASE."""
    file.chmod(0)
    assert few_rights.printed(ASK, file) == "[]"
    launch(IN_TRANSIT, file)
    assert few_rights.printed(ASK, file) == "None"
    os.chown(file, 65534, 65534)
    assert few_rights.printed(ASK, file) == "None"


HIDDEN = """
import os, sys
from pathlib import Path
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated.simulated_backend import Users
os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    os.chdir(sys.argv[1])
    Users(Path("/proc")).listed("GPU", ["memory"])
except DeviceError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming somebody else takes root")
def test_a_holder_that_may_not_be_inspected_is_reported(launch) -> None:
    """A process of root has the memory of a GPU of somebody else open."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "memory")
        file.touch()
        for path in (file.parent, file):
            os.chown(path, 65534, 65534)
        launch(WRITE, file)
        command = [sys.executable, "-c", HIDDEN, directory]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WITHIN).stdout
    why = "a process that user nobody may not inspect has the memory of GPU open: `fuser -v memory`, as root, names it"
    assert said.strip() == why


@pytest.mark.parametrize("code", [RESTLESS, FORKING], ids=["moves its descriptor", "forks and exits"])
def test_a_user_that_keeps_moving_never_looks_absent(file: Path, launch, code: str) -> None:
    """Searches alone missed such users in most looks."""
    launch(code, file)
    users = Users(Path("/proc"))
    looks = [listed(users, file) for _ in range(10)]
    file.unlink()  # ends the process that forks
    assert frozenset() not in looks
