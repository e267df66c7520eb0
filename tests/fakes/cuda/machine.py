"""Which GPUs CUDA shows, and what is wrong with them: one JSON file, which tests write and each process reads."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

ENVIRONMENT = "AUTOCLAVE_FAKE_CUDA"
SITE = Path(__file__).parent / "site"


@dataclass(frozen=True)
class CudaGpu:
    """One GPU. Its memory is a file, so that it outlives the processes that use it."""

    memory: str
    claims: str  # a folder: who has how much of it, for as long as it lives
    pci_address: str
    node: str | None = None  # below /dev: open as long as the device is
    shown_uuid: str = ""  # where another device is shown
    shown: int = 1  # how many devices CUDA shows where this one was asked for
    units: int = 4
    capability: tuple[int, int] = (9, 0)
    has: tuple[int, ...] = ()  # attributes that are 1 and else are 0
    refuses_limits: tuple[int, ...] = ()
    refuses: int | None = None  # the status that it answers with at once
    stuck: dict[str, int] = field(default_factory=dict)
    lazy: bool = False
    fails_after: int | None = None
    deviating: tuple[int, ...] = ()
    leaky: tuple[int, ...] = ()
    unreached: tuple[int, ...] = ()
    stops_at: str | None = None  # a launch, as in "write 3", or "allocate 2": there it goes no further ...
    dies_at: str | None = None  # ... or ends
    dies_of: int = 11  # ... by this signal
    fails_at: str | None = None  # a launch that the driver answers with an error ...
    fails_with: int = 719  # ... of this status
    names_reserved: bool = False  # the driver says that the system's shared memory of a block is the kernel's own
    counts_reserved: str = ""  # the driver adds it to what a block asks for: refused by "attribute" or by "launch" ...
    refuses_size_with: int = 1  # ... with this status
    taken_at: tuple[str, int] | None = None  # a launch, and how much somebody else takes then

    @property
    def stop(self) -> Path:
        """A named pipe. A process that stops at a launch writes into it and keeps it open."""
        return Path(self.claims).parent / "stop"


@dataclass(frozen=True)
class CudaMachine:
    """The file."""

    path: Path

    @classmethod
    def of_environment(cls) -> CudaMachine:
        return cls(Path(os.environ[ENVIRONMENT]))

    @property
    def gpus(self) -> dict[str, CudaGpu]:
        return {uuid: CudaGpu(**it) for uuid, it in json.loads(self.path.read_text()).items()}

    def write(self, gpus: dict[str, CudaGpu]) -> None:
        text = json.dumps({uuid: asdict(gpu) for uuid, gpu in gpus.items()}, indent=1)
        aside = self.path.with_suffix(".new")
        aside.write_text(text)
        aside.rename(self.path)

    def change(self, uuid: str, **changes: object) -> None:
        gpus = self.gpus
        self.write(gpus | {uuid: replace(gpus[uuid], **cast("Any", changes))})

    def stopped(self, uuid: str) -> None:
        """Wait until a process has come to the launch at which this GPU stops."""
        with self.gpus[uuid].stop.open("rb") as stop:
            assert stop.read(1)

    def environment(self, path: str = "") -> dict[str, str]:
        """For a process that shall see it; ``path`` is the PYTHONPATH that it has."""
        return {ENVIRONMENT: str(self.path), "PYTHONPATH": os.pathsep.join(filter(None, (str(SITE), path)))}
