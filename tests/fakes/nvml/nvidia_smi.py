"""The stand-in for nvidia-smi: it resets a pretend GPU as the state says, and refuses when anybody still uses it.

``smi.reset`` in the state: ok, in-use, hang. With ok it looks for itself who is there: a process with the device's file
open, one that the GPU lists, one that has NVML open.
``smi.then.KEY`` is how the GPU is afterwards, such as ``smi.then.uuid`` for one that came back as another.
``hang.nvidia-smi`` names a file: as long as it is there, the tool goes on after it took the slices away.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.fakes.nvml.machine import Gpu, Machine, State

OK, NOT_FOUND, NO_DRIVER, LOST, REFUSED = 0, 6, 9, 15, 255
REPOSITORY = Path(__file__).parents[3]

_WRAPPER = """\
#!{python}
import sys

sys.path.insert(0, {repository!r})
from tests.fakes.nvml.nvidia_smi import main

sys.exit(main(sys.argv[1:]))
"""


def install(folder: Path) -> Path:
    """Write the program; the folder is to be put first in PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(_WRAPPER.format(python=sys.executable, repository=str(REPOSITORY)))
    program.chmod(0o755)
    return folder


def main(arguments: list[str]) -> int:
    """The exit code."""
    machine = Machine(Path(os.environ["AUTOCLAVE_FAKE_NVML"]))
    _log("nvidia-smi", " ".join(arguments))
    code = _run(machine, arguments)
    _log("nvidia-smi-ends", str(code))
    return code


def _log(what: str, more: str) -> None:
    path = os.environ.get("AUTOCLAVE_FAKE_NVML_LOG")
    if path:
        with Path(path).open("a") as log:
            log.write(f"{os.getpid()} {what} {more}\n")


def _run(machine: Machine, arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="nvidia-smi", add_help=False, allow_abbrev=False)
    parser.add_argument("--gpu-reset", "-r", action="store_true")
    parser.add_argument("--id", "-i")
    asked = parser.parse_args(arguments)
    if not machine.path.exists():
        return _say("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", NO_DRIVER)
    meant = [gpu for gpu in machine.gpus if _means(gpu, asked.id)]
    if not meant:
        return _say("No devices were found", NOT_FOUND)
    return _reset_all(machine, meant) if asked.gpu_reset else OK


def _say(text: str, code: int) -> int:
    print(text, flush=True)  # noqa: T201 - it is a program
    return code


def _means(gpu: Gpu, name: str | None) -> bool:
    if gpu.get("absent") == "1":
        return False
    bus = name is not None and name.lower()[-len(gpu.pci) :] == gpu.pci
    return name is None or bus or name in (gpu.uuid, str(gpu.number))


def _reset_all(machine: Machine, gpus: list[Gpu]) -> int:
    for gpu in gpus:
        code = _reset(machine, gpu)
        if code != OK:
            return code
    return _say("All done.", OK)


def _reset(machine: Machine, gpu: Gpu) -> int:
    state = machine.read()
    where, order = state[gpu.prefix + "pci"], state.get("smi.reset", "ok")
    if order == "hang":
        return _hang()
    if state.get(gpu.prefix + "lost", "0") != "0":
        return _say(f"Unable to determine the device handle for GPU {where}: GPU is lost", LOST)
    users = _users(machine, gpu)
    if order == "in-use" or users:
        _log("nvidia-smi-users", " ".join(map(str, sorted(users))))
        _say(f"GPU {where} could not be reset: In use by another client", REFUSED)
        return _say("1 device is currently being used by one or more other processes.", REFUSED)
    with machine.edit() as changing:
        _afterwards(changing, gpu.prefix)
    while Path(state.get("hang.nvidia-smi", "")).is_file():  # what it has taken is gone, and it is still at it
        time.sleep(0.01)
    return _say(f"GPU {where} was successfully reset.", OK)


def _hang() -> int:
    """As a driver that never answers, and with a child: the caller must end both."""
    with subprocess.Popen(["sleep", "600"]) as child:
        _log("nvidia-smi-child", str(child.pid))
        return child.wait()


def _users(machine: Machine, gpu: Gpu) -> set[int]:
    listed = (gpu.get(f"processes.{kind}") or "" for kind in ("compute", "graphics", "mps"))
    pids = {int(entry.split()[0]) for entries in listed for entry in entries.split(", ") if entry}
    pids |= _openers(gpu.get("device_file") or "")
    return (pids | set(machine.clients())) - {os.getpid()}


def _openers(file: str) -> set[int]:
    return {int(process.name) for process in Path("/proc").glob("[0-9]*") if file in _opened(process)}


def _opened(process: Path) -> Iterator[str]:
    """What a process has open. It may close one or end while we look, and into some of others we may not look."""
    with suppress(OSError):
        for entry in (process / "fd").iterdir():
            with suppress(FileNotFoundError):
                yield str(entry.readlink())


def _afterwards(state: State, prefix: str) -> None:
    """What a reset takes away, what it makes true, and what the test ordered beside it."""
    own = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    for key in [key for key in own if key.startswith(("gi.", "mig."))]:
        if state.get("smi.keeps_slices", "0") == "0":
            del state[prefix + key]
    changes = {key: "0" for key in own if key.startswith("ecc.total.") and key.endswith(".0")}
    changes |= dict.fromkeys(("reset_required", "drained", "remap.pending", "field.230"), "0")
    changes |= {"clock.locked.gpu": "none", "clock.locked.memory": "none"}
    changes |= {f"clock.app.{kind}": own.get(f"clock.app_default.{kind}", "") for kind in (0, 1, 2)}
    changes |= {"power.limit": own.get("power.default", ""), "memory.used": own.get("memory.idle", "")}
    changes |= {f"{mode}.current": own.get(f"{mode}.pending", "") for mode in ("ecc", "mig_mode")}
    known = {key: value for key, value in changes.items() if key in own and value}
    ordered = {key.removeprefix("smi.then."): value for key, value in state.items() if key.startswith("smi.then.")}
    state.update({prefix + key: value for key, value in (known | ordered).items()})
