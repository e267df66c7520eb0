"""What a driver says unasked takes a device out at once: on GPUs made of files, and over the kernel's log and NVML."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from scrubber.devices.simulated import drills
from tests.cli import on_machine
from tests.cli.on_machine import POLICY, OnMachine, needs_namespace, staged, without_cupy
from tests.devices.nvidia.health.events_seen import until
from tests.fakes.kmsg import Kmsg
from tests.live import Service

library = on_machine.library  # a fixture

NO_ROUND, LONG_BEFORE = 3600, 60.0  # seconds: only the alarm calls for one, and no load takes that long
PATIENTLY = f"""
from autoclave import cli
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.simulated.simulated_backend import Simulated
Nvidia.pace = Simulated.pace = {NO_ROUND}
cli.main()
"""


class Patient(Service):
    """A service that makes its first round, and no other one by itself."""

    def start(self, until="serving"):
        if "-m" in self.command:
            module = self.command.index("-m")
            self.command[module : module + 2] = ["-c", PATIENTLY]
        super().start(until)


class PatientOnMachine(Patient, OnMachine):
    """The same on the machine that the libraries pretend."""


def test_an_xid_quarantines_a_simulated_gpu_between_rounds(short_tmp) -> None:
    service = Patient(short_tmp, 1)
    device = service.settled(0, "clean").device
    began = time.monotonic()
    drills.xid(service.simulated_dir, device, 79)
    service.settled(0, "quarantined")
    assert time.monotonic() - began < LONG_BEFORE
    service.stop()


@pytest.fixture(scope="module")
def machine(library) -> Iterator[tuple[OnMachine, Kmsg]]:
    """Four GPUs, one of which had an error before the service began; there is no CuPy, and none is needed."""
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as directory:
        root = Path(directory)
        stage = staged(root, library, 4)
        kmsg = Kmsg(stage.root.path / "dev/kmsg")
        kmsg.xid(stage.machine.gpu(3).pci, 79, ", GPU has fallen off the bus.", at=1.5)
        running = PatientOnMachine(root, stage, POLICY, without_cupy(root / "site"))
        yield running, kmsg
        running.stop()
        kmsg.close()


@needs_namespace
def test_an_xid_before_the_start_asks_for_a_reset(machine) -> None:
    service, known = machine[0], "that no scrub has judged, so a reset is due"
    until(lambda: any(known in text for text in service.texts(3)))  # with the first round
    assert not any("quarantined" in text for text in service.texts(3))


@needs_namespace
def test_an_xid_quarantines_from_the_log_and_then_from_nvml(machine) -> None:
    """One test, because the log of the machine ends in it for good."""
    running, kmsg = machine
    began = time.monotonic()
    kmsg.xid(running.stage.machine.gpu(1).pci, 79, ", GPU has fallen off the bus.")
    running.settled(1, "quarantined")
    kmsg.close()
    running.stage.machine.gpu(2).event(pynvml.nvmlEventTypeXidCriticalError, 95)
    running.settled(2, "quarantined")
    assert time.monotonic() - began < LONG_BEFORE
