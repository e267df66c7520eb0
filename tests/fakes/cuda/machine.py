"""Which GPUs of the stand-in for NVML CUDA shows, and what is wrong with them there.

All of it stands in the file of that machine, so that both libraries say the same; see ``driver/driver.h`` for the keys.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.nvml.machine import Gpu, Machine

ENVIRONMENT = "AUTOCLAVE_FAKE_CUDA"
BASE = 2**40  # of all addresses: none is small by accident
PAGE = 2**21
SIZE = 8 * PAGE
RESERVED = 2 * PAGE
UNITS = 4


@dataclass(frozen=True)
class Libraries:
    """What is compiled: ``libcuda.so.1``, and the kernels that it runs, by the name of their image."""

    driver: Path
    kernels: Path


@dataclass(frozen=True)
class CudaMachine:
    """The machine, and what shows it to CUDA."""

    machine: Machine
    libraries: Libraries

    def change(self, uuid: str, **changes: object) -> None:
        """Let CUDA show something else of a GPU; None: as a sound one. ``refuses``: a status of its first call."""
        if "refuses" in changes:
            self.fail(uuid, "cuInit", changes.pop("refuses"))
        self._gpu(uuid).set({f"cuda.{key}": _text(value) for key, value in changes.items()})

    def fail(self, uuid: str, call: str, status: object) -> None:
        """Let a call answer with a status; such as "2 5": from the fifth call on."""
        self._gpu(uuid).set({f"cuda.fail.{call}": status})

    def memory(self, uuid: str) -> Path:
        """The file that is its memory."""
        return Path(self._gpu(uuid)["cuda.memory"])

    def taken(self, uuid: str) -> int:
        """The bytes that this process has of it."""
        [claim] = Path(self._gpu(uuid)["memory.claims"]).glob(f"{os.getpid()}.*")
        return int(claim.read_text())

    @contextmanager
    def claim(self, uuid: str, name: str) -> Iterator[Callable[[int], None]]:
        """Another process, which takes as much memory as it is told, until the end of the block."""
        with (Path(self._gpu(uuid)["memory.claims"]) / name).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield lambda size: os.truncate(file.name, os.pwrite(file.fileno(), str(size).encode(), 0))

    def enlarge(self, uuid: str, more: int) -> None:
        """Give it so many bytes of memory more."""
        gpu, size = self._gpu(uuid), self.memory(uuid).stat().st_size + more
        os.truncate(self.memory(uuid), size)
        gpu.set({"memory.total": size + RESERVED})

    def stopped(self, uuid: str) -> None:
        """Wait until a process has come to the launch at which this GPU stops."""
        with Path(self._gpu(uuid)["cuda.stop"]).open("rb") as stop:
            assert stop.read(1)

    def environment(self, *libraries: Path) -> dict[str, str]:
        """For a process that shall see it beside other stand-ins, which are in these folders."""
        return {
            ENVIRONMENT: str(self.libraries.kernels.parent),
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, (self.libraries.driver.parent, *libraries))),
        }

    def _gpu(self, uuid: str) -> Gpu:
        return next(gpu for gpu in self.machine.gpus if gpu.uuid == uuid)


def equip(folder: Path, gpus: Iterable[Gpu], libraries: Libraries, size: int = SIZE) -> CudaMachine:
    """Give GPUs of one machine a memory that CUDA can reach, so many bytes of it."""
    gpus = tuple(gpus)
    for gpu in gpus:
        place = folder / gpu.uuid
        (place / "claims").mkdir(parents=True)
        (place / "memory").touch()
        os.truncate(place / "memory", size)
        os.mkfifo(place / "stop")
        accounts = {"total": size + RESERVED, "reserved": RESERVED, "used": 0, "idle": 0, "claims": place / "claims"}
        gpu.set({f"memory.{name}": value for name, value in accounts.items()})
        gpu.set({"cuda.memory": place / "memory", "cuda.stop": place / "stop"})
    return CudaMachine(gpus[0].machine, libraries)


def _text(value: object) -> object:
    if isinstance(value, Mapping):
        return " ".join(f"{place}:{bits}" for place, bits in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return " ".join(map(str, value)) or None
    return value or None
