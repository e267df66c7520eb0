"""What nvidia-smi says is understood, and a late one is ended with all its children."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from scrubber.devices.nvidia.reset import smi
from scrubber.devices.nvidia.reset.attempt import Attempt, Done, InUse, NoPermission, ResetFailed, Stuck, Unsupported

UUID = "GPU-5e7f0000-1111-4222-8333-a0b1c2d3e4f5"
GPU = "GPU 00000000:1B:00.0"
PLAIN = Unsupported("nvidia-smi says that this device cannot be reset")


@pytest.mark.parametrize(
    ("status", "said", "meant"),
    [
        (0, f"{GPU} was successfully reset.\nAll done.\n", Done()),
        (0, f"WARNING: persistence mode is off\n{GPU} was Successfully Reset.", Done()),
        (255, f"{GPU} could not be reset: In use by another client", InUse()),
        (255, "1 device is currently being used by one or more other processes (e.g. Fabric Manager).", InUse()),
        (0, f"{GPU}: In use by another client\n{GPU} was successfully reset.", InUse()),
        (255, "Unable to reset this GPU because it's being used by some other process.", InUse()),
        (255, f"{GPU} is currently in use by another process.", InUse()),
        (255, f"GPU Reset couldn't run because {GPU} is the primary GPU.", InUse()),
        (3, "", PLAIN),
        (255, f"Resetting {GPU} is not supported.", PLAIN),
        (4, "", NoPermission()),
        (255, f"Unable to reset {GPU}: Insufficient Permissions", NoPermission()),
        (0, "", ResetFailed("nvidia-smi ended with status 0: it said nothing")),
        (0, "All done.", ResetFailed("nvidia-smi ended with status 0: All done.")),
        (
            255,
            f"{GPU} was successfully reset.",
            ResetFailed(f"nvidia-smi ended with status 255: {GPU} was successfully reset."),
        ),
        (
            255,
            f"{GPU} could not be reset.",
            ResetFailed(f"nvidia-smi ended with status 255: {GPU} could not be reset."),
        ),
        (15, "lost", ResetFailed("nvidia-smi ended with status 15 (a device that has fallen off the bus): lost")),
        (-9, "", ResetFailed("nvidia-smi ended with status -9: it said nothing")),
        (1, "a\tb\x1b[2Jc\n\n d", ResetFailed("nvidia-smi ended with status 1: a b [2Jc d")),
    ],
)
def test_its_status_and_its_words_are_understood(status: int, said: str, meant: Attempt) -> None:
    assert smi.understood(status, said) == meant


@pytest.mark.parametrize("status", [2, 3, 4, 6, 8, 9, 10, 12, 13, 14, 15, 255, 1, -15])
def test_no_status_but_0_is_ever_done(status: int) -> None:
    assert smi.understood(status, "was successfully reset\nAll done.") != Done()


def test_long_output_of_the_program_is_cut() -> None:
    failed = smi.understood(1, "x" * 5000)
    assert isinstance(failed, ResetFailed)
    assert len(failed.why) < 400


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program of that name, first on the path."""

    def install(text: str) -> None:
        file = tmp_path / "bin" / "nvidia-smi"
        file.parent.mkdir()
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")

    return install


def test_the_program_gets_one_device_and_no_locale(program, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LC_ALL", "xx_XX")
    program(f'echo "$@" $LC_ALL > {tmp_path}/asked; echo was successfully reset')
    assert smi.reset(UUID, 10) == Done()
    assert (tmp_path / "asked").read_text() == f"--gpu-reset -i {UUID} C\n"


def test_both_output_streams_are_read(program) -> None:
    program("echo In use by another client >&2; exit 255")
    assert smi.reset(UUID, 10) == InUse()


def test_a_missing_program_is_an_error(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert smi.reset(UUID, 10) == Unsupported("nvidia-smi cannot be started (No such file or directory)")


def ended(pid: int) -> bool:
    """Whether a process that is not our child ends within seconds."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(process, select.POLLIN)
    gone = bool(poll.poll(5000))
    os.close(process)
    return gone


def test_a_late_program_is_killed_with_its_children(program, tmp_path) -> None:
    program(f"trap '' TERM\nsh -c 'trap \"\" TERM; echo $$ > {tmp_path}/child; sleep 600; :' & wait")
    assert smi.reset(UUID, 2.0) == ResetFailed("nvidia-smi was not done within 2 s and was killed")
    assert ended(int((tmp_path / "child").read_text()))


def test_a_program_that_cannot_be_killed_is_reported_as_such(program, monkeypatch) -> None:
    """As when it is stuck in the driver: the signal is sent, and nothing happens."""
    program("exec sleep 600")
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("os.killpg", lambda *order: sent.append(order))
    monkeypatch.setattr(smi, "_ENDS_WITHIN", 0.1)
    with pytest.warns(ResourceWarning, match="still running"):
        stuck = smi.reset(UUID, 0.1)
    ((pid, order),) = sent
    assert order == signal.SIGKILL
    assert stuck == Stuck(f"nvidia-smi (pid {pid}) was not done within 0.1 s and cannot be killed")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not Path(f"/proc/{pid}").exists()
