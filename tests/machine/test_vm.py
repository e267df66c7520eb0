"""What a person sees while a machine boots. QEMU and ssh are stand-ins; ``make machine`` has the real ones."""

import os
import subprocess

import pytest

from tests.machine import __main__, building, vm


def refuse(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """It never answers."""
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.setattr(vm, "CONSOLE", tmp_path / "console.log")
    vm.CONSOLE.write_text("Booting\n\x1b[0;32m  OK  \x1b[0m Started sshd\n\n")
    monkeypatch.setattr(vm, "SAID_EVERY", 0.0)
    made = vm.Machine(["qemu"], 1)
    made.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    yield made
    made.process.kill()
    made.process.communicate()


def test_what_a_boot_waits_for_is_said_until_its_limit(machine, monkeypatch, capfd):
    monkeypatch.setattr(vm, "BOOTS_WITHIN", 0.5)
    with pytest.raises(building.NoMachineError, match=r"it does not boot: see .*console\.log"):
        machine.wait()
    said = capfd.readouterr().err
    assert "waiting for its ssh server, for up to 0 s more; its console says '[0;32m  OK  [0m Started sshd'" in said


def test_a_busy_machine_makes_the_limit_longer(machine, monkeypatch):
    """A hundred times as busy, a second counts as a hundredth of one: the try then ends with the process."""
    counted: list[float] = []

    def stretch() -> float:
        counted.append(1e9)
        if len(counted) == 2:
            machine.process.kill()
            machine.process.wait()
        return counted[-1]

    monkeypatch.setattr(vm, "stretch", stretch)
    monkeypatch.setattr(vm, "BOOTS_WITHIN", 0.5)
    with pytest.raises(building.NoMachineError):
        machine.wait()
    assert len(counted) == 2


def test_ctrl_c_has_no_traceback(monkeypatch, capfd):
    monkeypatch.setattr(building, "demand", refuse)
    assert __main__.main([]) == 130
    assert capfd.readouterr().err == "interrupted\n"
