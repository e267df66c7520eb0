"""What a person sees while a machine boots, dies or is ended. ``make machine`` has a real one; here it is another."""

import sys
from pathlib import Path

import pytest

from tests.machine import __main__, building, vm

# In place of user-mode Linux: it has the descriptors of the serial line, and runs what is asked without a scope.
STAND_IN = f"""
import re, runpy, sys
sys.path.insert(0, {str(building.ROOT)!r})
from tests.machine import agent
requests, answers = map(int, re.search(r"ssl0=fd:(\\d+),fd:(\\d+)", " ".join(sys.argv)).groups())
print("Booting\\n\\x1b[0;32m  OK  \\x1b[0m Started agent\\n", flush=True)
{{}}
"""
SERVES = "agent.serve(requests, answers, ('sh', '-c'))"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that makes one of some lines of Python."""
    monkeypatch.setattr(vm, "CONSOLE", tmp_path / "kept.log")
    monkeypatch.setattr(vm, "SAID_EVERY", 0.0)
    (tmp_path / "run").mkdir()
    made = vm.Machine(tmp_path / "run")

    def with_body(body: str) -> vm.Machine:
        code = STAND_IN.format(body)
        monkeypatch.setattr(vm, "LINUX", ("setpriv", "--pdeathsig", "KILL", sys.executable, "-c", code))
        return made

    yield with_body
    made.cut_power()


def refuse(*_: object) -> None:
    raise KeyboardInterrupt


def test_what_a_boot_waits_for_is_said_until_its_limit(machine, monkeypatch, capfd):
    monkeypatch.setattr(vm, "BOOTS_WITHIN", 0.5)
    with pytest.raises(building.NoMachineError, match=r"it does not boot: see .*kept\.log"):
        machine("sys.stdin.read(); import time; time.sleep(1000)").start()
    assert "waiting for its boot, for up to 0 s more; its console says" in capfd.readouterr().err


def test_a_machine_that_ends_names_its_console(machine):
    with pytest.raises(building.NoMachineError, match=r"it has ended: see .*kept\.log; .*'\[0;32m  OK  \[0m Started"):
        machine("").start()
    assert "Booting" in vm.CONSOLE.read_text()


def test_a_command_streams_its_output_and_has_its_exit_code(machine, capfd):
    running = machine(SERVES)
    running.start()
    assert running.run("echo to one; echo to the other >&2; exit 7") == 7
    assert running.output("printf 'a\\nb'") == "a\nb"
    said = capfd.readouterr()
    assert (said.out, said.err.splitlines()[-1]) == ("to one\n", "to the other")


def test_a_command_ends_with_its_machine(machine):
    running = machine(SERVES)
    running.start()
    with pytest.raises(building.NoMachineError, match="it has ended"):
        running.run("kill -9 $PPID; sleep 1000")


def test_a_boot_ends_the_command_that_asked_for_it(machine):
    running = machine("""
import os
for boot in range(2):
    os.write(answers, b'["up", "a boot"]\\n')
    asked = os.read(requests, 1000)
""")
    running.start()
    running.reboot()


def test_ctrl_c_has_no_traceback(monkeypatch, capfd):
    monkeypatch.setattr(building, "demand", refuse)
    assert __main__.main([]) == 130
    assert capfd.readouterr().err == "interrupted\n"


def test_what_is_missing_is_said_before_anything_is_made(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(building, "FOLDER", tmp_path / "machine")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert __main__.main([]) == 3
    assert "not installed: apt, dpkg, git, util-linux" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_removes_no_folder_that_another_run_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "FOLDER", tmp_path)
    (tmp_path / "run-killed").mkdir()
    with vm.own_folder() as first, vm.own_folder() as second:
        assert {first, second} == set(tmp_path.glob("run-*"))
    assert list(tmp_path.glob("run-*")) == []
