"""The create gate is installed whole, and in force only where the container runtime asks."""

import pytest

from scrubber.create_gate import installation
from scrubber.ground.errors import FatalError


@pytest.fixture
def notified():
    """The notifications."""
    return []


@pytest.fixture
def install(tmp_path, program, notified):
    """Install the gate of a service."""
    for name in ("cdi", "run"):
        (tmp_path / name).mkdir()
    places = (tmp_path / "cdi", tmp_path / "state", tmp_path / "run/gate.sock")
    return lambda: installation.install(program, *places, lambda: notified.append("news"))


def test_the_gate_is_in_force_once_the_runtime_has_asked(install, notified):
    gate = install()
    gate.cover(["GPU-1"])
    assert not gate.in_force("GPU-1")
    assert not notified
    gate.note_question()
    gate.note_question()
    assert notified == ["news"], "the plugin learns it at once, and once"
    assert (gate.in_force("GPU-1"), gate.in_force("GPU-2")) == (True, False)
    restarted = install()
    restarted.cover(["GPU-1"])
    assert restarted.in_force("GPU-1"), "the boot is the same"


def test_only_a_device_of_the_specification_has_a_gate(install, tmp_path):
    gate = install()
    assert gate.name("GPU-1") == ""
    assert [gate.cover(["GPU-1"]), gate.cover(["GPU-1"])] == [True, False]
    assert gate.name("GPU-1") == "autoclave.dev/gate=GPU-1"
    (tmp_path / "cdi" / installation.SPECIFICATION).unlink()
    (tmp_path / "cdi").rmdir()
    with pytest.raises(OSError, match="No such file"):
        gate.cover(["GPU-1", "GPU-2"])
    assert gate.name("GPU-2") == ""


def test_a_program_that_does_not_run_is_not_installed(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(FatalError, match="it does not run: exit code 0"):
        installation.install(broken, tmp_path, tmp_path / "state", tmp_path / "gate.sock", lambda: None)
    assert list((tmp_path / "state/gate").iterdir()) == []
