"""A machine with NVIDIA GPUs, as the stand-in for NVML tells of it: one text file, which tests and the library change.

Nothing is kept here: the file is the truth, and each change is made under one lock and all at once.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.nvml import capabilities, presets

State = dict[str, str]
UNKNOWN = "-"


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Process:
    """A process that a GPU lists. ``used`` None: not available; gi and ci belong to a slice."""

    pid: int
    used: int | None = 512 * presets.MIB
    gi: int | None = None
    ci: int | None = None

    def __str__(self) -> str:
        parts = (self.used, self.gi, self.ci)
        return " ".join([str(self.pid), *(UNKNOWN if part is None else str(part) for part in parts)])


@dataclass(frozen=True)
class Slice:
    """A GPU instance with one compute instance that is all of it. ``start`` None: behind the one before."""

    profile: str = "1g.18gb"
    start: int | None = None
    uuid: str | None = None


@dataclass(frozen=True)
class Machine:
    """The state file and what stands beside it: the log of calls, the live clients."""

    path: Path
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "log", self.path.with_name(self.path.name + ".log"))

    @classmethod
    def h200(cls, path: Path, count: int = 8) -> Machine:
        """A machine with ``count`` healthy and idle H200."""
        machine = cls(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {key: _text(value) for key, value in presets.host().items()}
        for number in range(count):
            state |= {f"gpu.{number}.{key}": _text(value) for key, value in presets.h200(number).items()}
        machine._write(state)
        return machine

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to see this machine, beside the library's place."""
        return {"AUTOCLAVE_FAKE_NVML": str(self.path), "AUTOCLAVE_FAKE_NVML_LOG": str(self.log)}

    # --- the file ---

    def read(self) -> State:
        """The whole state."""
        lines = (line.partition(" = ") for line in self.path.read_text().splitlines())
        return {key: value for key, _, value in lines}

    @contextmanager
    def edit(self) -> Iterator[State]:
        """Change the state under the lock. All changes appear at once."""
        with Path(f"{self.path}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.read()
            before = dict(state)
            yield state
            self._write(state)
            capabilities.follow(before, state)

    def _write(self, state: Mapping[str, str]) -> None:
        fresh = Path(f"{self.path}.new")
        fresh.write_text("".join(f"{key} = {state[key]}\n" for key in sorted(state)))
        fresh.rename(self.path)

    def set(self, changes: Mapping[str, object] | None = None, /, **more: object) -> None:
        """Keys by their whole name; the value None takes a key away."""
        with self.edit() as state:
            for key, value in {**(changes or {}), **more}.items():
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = _text(value)

    def get(self, key: str) -> str | None:
        """The value of one key."""
        return self.read().get(key)

    def unload(self) -> None:
        """No driver any more: every call says so."""
        self.path.unlink()

    # --- its GPUs, its faults, its events ---

    def gpu(self, number: int) -> Gpu:
        """A GPU by its number in the state. An absent GPU does not change the numbers of the others."""
        return Gpu(self, number)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs, including absent ones."""
        state = self.read()
        return tuple(
            Gpu(self, number)
            for number in itertools.takewhile(lambda number: f"gpu.{number}.uuid" in state, itertools.count())
        )

    def fail(self, call: str, code: int | None) -> None:
        """Let a function of the library (``*``: all) answer with an error, or answer again."""
        self.set({f"fail.{call}": code})

    @contextmanager
    def hanging(self, call: str, prefix: str = "") -> Iterator[Path]:
        """Let a function block, until the file that is given is taken away or the block ends."""
        file = self.path.with_name(f"{prefix}{call}.hangs")
        file.touch()
        self.set({f"{prefix}hang.{call}": file})
        try:
            yield file
        finally:
            file.unlink(missing_ok=True)
            self.set({f"{prefix}hang.{call}": None})

    def event(self, uuid: str, kind: int, data: int = 0, gi: int = 2**32 - 1) -> None:
        """Report an event of a GPU, or of a GPU instance, to all that wait for it."""
        with self.edit() as state:
            number = next(number for number in itertools.count() if f"event.{number}" not in state)
            state[f"event.{number}"] = f"{uuid} {kind} {data} {gi} {2**32 - 1}"

    # --- who asked ---

    def calls(self) -> list[tuple[int, str, str]]:
        """Every call so far: who, what, about which device."""
        if not self.log.exists():
            return []
        *lines, _unfinished = self.log.read_text().split("\n")
        return [(int(pid), call, about) for pid, call, about in (line.split(" ", 2) for line in lines)]

    def clients(self) -> tuple[int, ...]:
        """The processes that have NVML open. A lock tells, so one that was killed is none."""
        folder = Path(f"{self.path}.clients")
        return tuple(sorted(int(entry.name) for entry in folder.glob("*") if _locked(entry)))


def _locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:  # gone this moment
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Gpu:
    """One GPU of a machine."""

    machine: Machine
    number: int

    @property
    def prefix(self) -> str:
        return f"gpu.{self.number}."

    @property
    def uuid(self) -> str:
        return self["uuid"]

    @property
    def pci(self) -> str:
        """The PCI address of the GPU as the kernel writes it."""
        return self["pci"][4:].lower()

    @property
    def minor(self) -> int:
        return int(self["minor"])

    def __getitem__(self, key: str) -> str:
        return self.machine.read()[self.prefix + key]

    def get(self, key: str) -> str | None:
        return self.machine.get(self.prefix + key)

    def set(self, changes: Mapping[str, object] | None = None, /, **more: object) -> None:
        """Such as ``set(lost=True)`` or ``set({"memory.used": 0})``; None: not supported any more."""
        self.machine.set({self.prefix + key: value for key, value in {**(changes or {}), **more}.items()})

    def fail(self, call: str, code: int | None) -> None:
        """Let a function answer with an error for this GPU and its slices, or answer again."""
        self.set({f"fail.{call}": code})

    def hanging(self, call: str) -> AbstractContextManager[Path]:
        """Let a function block for this GPU: see ``Machine.hanging``."""
        return self.machine.hanging(call, self.prefix)

    def sets_up(self) -> Path:
        """Let the first handle of each session block, until the file that is given is taken away."""
        file = self.machine.path.with_name(f"{self.prefix}sets_up")
        file.touch()
        self.set(sets_up=file)
        return file

    def run(self, *processes: Process, kind: str = "compute") -> None:
        """Replace the GPU's processes of one kind by these."""
        self.set({f"processes.{kind}": ", ".join(map(str, processes))})

    def event(self, kind: int, data: int = 0, gi: int = 2**32 - 1) -> None:
        self.machine.event(self.uuid, kind, data, gi)

    def cut(self, slices: Iterable[Slice]) -> tuple[str, ...]:
        """Cut the GPU into these slices in place of its present ones, and return their UUIDs."""
        uuids = []
        with self.machine.edit() as state:
            for key in [key for key in state if key.startswith((self.prefix + "gi.", self.prefix + "mig."))]:
                del state[key]
            state |= {f"{self.prefix}mig_mode.{which}": "1" for which in ("current", "pending")}
            behind = 0
            for number, piece in enumerate(slices):
                start = behind if piece.start is None else piece.start
                keys, behind = self._slice(state, number, piece, start)
                state |= {self.prefix + key: _text(value) for key, value in keys.items()}
                uuids.append(state[f"{self.prefix}mig.{number}.uuid"])
        return tuple(uuids)

    def _slice(self, state: State, number: int, piece: Slice, start: int) -> tuple[dict[str, object], int]:
        profile = presets.PROFILE_BY_NAME[piece.profile]
        about = f"{self.prefix}profile.{profile}."
        size, slices = int(state[about + "size"]), int(state[about + "slices"])
        pieces = 8 // size
        gi = pieces - 1 + start // size  # the place decides on the number: see mig.c
        salt = state.get(self.prefix + "mig_salt", "")
        instance = {"profile": profile, "start": start, "size": size, "memory.used": 0}
        instance["memory.total"] = int(state[about + "memory_mb"]) * presets.MIB
        part = {
            "uuid": piece.uuid or presets.mig_uuid(state[self.prefix + "uuid"], gi, 0, salt),
            "name": f"{state[self.prefix + 'name']} MIG {piece.profile}",
            "gi": gi,
            "ci": 0,
            "profile": {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[slices],
            "start": 0,
            "slices": slices,
        }
        keys: dict[str, object] = {f"gi.{gi}.{key}": value for key, value in instance.items()}
        return keys | {f"mig.{number}.{key}": value for key, value in part.items()}, start + size

    def uncut(self) -> None:
        """MIG off."""
        self.cut(())
        self.set({"mig_mode.current": 0, "mig_mode.pending": 0})
