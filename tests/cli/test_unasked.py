"""What a driver says unasked takes a device out at once: on GPUs made of files, and over the kernel's log and NVML."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from scrubber.devices.simulated import drills
from tests.cli.on_machine import OnMachine, needs_namespace
from tests.cli.test_nvidia import POLICY, library, staged
from tests.fakes.kmsg import Kmsg

__all__ = ["library"]  # fixtures

AT_ONCE = 1.0  # seconds; a round comes every two seconds there


def test_an_xid_takes_a_simulated_gpu_out_within_a_second(service, gpu, autoclave) -> None:
    (item,) = json.loads(autoclave("status", gpu, "-o", "json").stdout)["items"]
    began = time.monotonic()
    drills.xid(service.simulated_dir, item["device"], 79)
    service.settled(gpu, "quarantined")
    assert time.monotonic() - began < AT_ONCE


@pytest.fixture(scope="module")
def machine(library) -> Iterator[tuple[OnMachine, Kmsg]]:
    """Four GPUs, one of which had an error before the service began; there is no CuPy, and none is needed."""
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as directory:
        root = Path(directory)
        stage = staged(root, library, 4)
        kmsg = Kmsg(stage.root.path / "dev/kmsg")
        kmsg.xid(stage.machine.gpu(3).pci, 79, ", GPU has fallen off the bus.", at=1.5)
        running = OnMachine(root, stage, POLICY, {"PYTHONPATH": ""})
        yield running, kmsg
        running.stop()
        kmsg.close()


@needs_namespace
def test_an_xid_from_before_the_service_is_seen_and_owes_the_slow_path(machine) -> None:
    service = machine[0]
    assert any("before it was first seen, and it owes the slow path" in text for text in service.texts(3))
    assert not any("quarantined" in text for text in service.texts(3))


@needs_namespace
def test_an_xid_that_the_kernel_logs_takes_a_gpu_out_at_once(machine) -> None:
    running, kmsg = machine
    began = time.monotonic()
    kmsg.xid(running.stage.machine.gpu(1).pci, 79, ", GPU has fallen off the bus.")
    running.settled(1, "quarantined")
    assert time.monotonic() - began < AT_ONCE


@needs_namespace
def test_an_xid_that_nvml_alone_tells_takes_a_gpu_out_at_once(machine) -> None:
    running, _ = machine
    began = time.monotonic()
    running.stage.machine.gpu(2).event(pynvml.nvmlEventTypeXidCriticalError, 95)
    running.settled(2, "quarantined")
    assert time.monotonic() - began < AT_ONCE
