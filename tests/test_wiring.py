"""Promises that hold only if ``assembly`` connects the parts: the whole service as a process."""

from __future__ import annotations

import asyncio
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from autoclave.cli import service_call
from scrub_api import admin_client, client, views
from scrubber.devices.simulated import layout
from tests.foreign_processes import foreign_process
from tests.live import Service
from tests.patience import WITHIN

ROUNDLESS = """
from autoclave import cli
from scrubber.devices.simulated.simulated_backend import Simulated
Simulated.pace = 3600.0
cli.main()
"""
OF_NVIDIA = f"""
from autoclave import cli
from policies import policy_model
policy_model.OPERATOR_PROGRAMS = ({str(Path(sys.executable).resolve())!r},)
cli.main()
"""
QUICK = "name: quick\ndefaults: {paths: {first_look: fast}, clear: {passes: zero}%s}\n"
POD = str(uuid.uuid4())


def policy(root: Path, words: str = "") -> Path:
    file = root / "policy.yaml"
    file.write_text(QUICK % words)
    return file


class Scripted(Service):
    """A service with one GPU that this script starts."""

    def __init__(self, script: str, root: Path, *flags: object) -> None:
        self.script = script
        super().__init__(root, 1, *flags)

    def start(self, until: str = "serving") -> None:
        self.command[1:3] = ["-c", self.script]
        super().start(until)


@pytest.fixture
def roundless(short_tmp: Path) -> Iterator[Service]:
    """One clean GPU, observed only after an event."""
    it = Scripted(ROUNDLESS, short_tmp, "--policy", policy(short_tmp))
    yield it
    it.stop()


def after_a_pod(service: Service) -> views.ReceiptView:
    """The receipt of the clean GPU after a pod has written to it and ended."""
    device = service.settled(0, "clean").device

    async def tenancy() -> None:
        async with client.ScrubberClient(service.run_dir / "scrubber.sock") as scrubber:
            await scrubber.acquire([device], announced=True)
            with foreign_process(service.simulated_dir, device, POD, b"secret"):
                await scrubber.start([device], POD)

    async def clean(admin: admin_client.AdminClient) -> views.DeviceStatus:
        """Its status once it is clean again; it is in use when this is called."""
        status = await admin.status()
        async with asyncio.timeout(WITHIN):
            while status.devices[0].state != "clean":
                status = await admin.status(newer_than=status.service.ledger_rows, wait=WITHIN)
        return status.devices[0]

    asyncio.run(tenancy())
    after: views.ReceiptView | None = service_call.ask(service.run_dir, clean).receipt
    assert after is not None
    return after


def test_the_end_of_a_pod_starts_a_scrub_at_once(roundless: Service) -> None:
    before = receipt(roundless)
    after = after_a_pod(roundless)
    assert (after.previous, after.processes_found) == (before, 0)


def test_a_pattern_that_random_leaves_is_no_residue(short_tmp: Path) -> None:
    file = short_tmp / "policy.yaml"
    file.write_text("name: noise\ndefaults: {paths: {first_look: fast}, clear: {passes: random}}\n")
    with ExitStack() as stack:
        service = Service(short_tmp, 1, "--policy", file)
        stack.callback(service.stop)
        after, device = after_a_pod(service), service.settled(0, "clean").device
    held = layout.find(service.simulated_dir, device).memory.read_bytes()
    assert (held.count(b"secret"), held.count(0) < len(held) / 128) == (0, True)
    assert (after.patterns, after.leaves, after.residue_bytes, after.searched_bytes) == (("random",), "random", 0, 0)


@pytest.fixture
def plain(short_tmp: Path) -> Iterator[Service]:
    """One clean GPU."""
    it = Service(short_tmp, 1, "--policy", policy(short_tmp))
    yield it
    it.stop()


def receipt(service: Service) -> str:
    """The receipt of the GPU once it is clean."""
    proven: views.ReceiptView | None = service.settled(0, "clean").receipt
    assert proven is not None
    return proven.digest


def test_an_older_copy_of_the_ledger_proves_nothing(plain: Service) -> None:
    device = plain.settled(0, "clean").device
    plain.stop()
    state, copy = plain.root / "state", plain.root / "copy"
    shutil.copytree(state, copy)
    plain.start()
    plain.settled(0, "clean")

    async def tenancy() -> None:
        async with client.ScrubberClient(plain.run_dir / "scrubber.sock") as scrubber:
            await scrubber.acquire([device], announced=True)
            await scrubber.start([device], POD)

    asyncio.run(tenancy())
    with foreign_process(plain.simulated_dir, device, POD, b"secret"):
        plain.kill()
    shutil.rmtree(state)
    copy.rename(state)
    assert [line for line in plain.log_lines if "an older copy" in line] == []
    plain.start()
    plain.settled(0, "clean")
    assert [line for line in plain.log_lines if "an older copy" in line]
    assert b"secret" not in layout.find(plain.simulated_dir, device).memory.read_bytes()


@pytest.fixture
def service(short_tmp: Path) -> Iterator[Service]:
    """One clean GPU; a pod of the namespace ``tools`` may have it open, with a program that tests can run."""
    logs = short_tmp / "elsewhere"
    (logs / f"tools_exporter-x_{POD}").mkdir(parents=True)
    flags = ("--pod-logs-dir", logs, "--operator-namespace", "tools")
    it = Scripted(OF_NVIDIA, short_tmp, "--policy", policy(short_tmp), *flags)
    it.settled(0, "clean")
    yield it
    if it.process.poll() is None:
        it.stop()


def scrub(service: Service) -> views.ScrubResult:
    """The result of a requested scrub."""

    async def ask(admin: admin_client.AdminClient) -> views.ScrubResult:
        results = [update.result async for update in admin.scrub(["0"])]
        assert results[-1] is not None
        return results[-1]

    return service_call.ask(service.run_dir, ask)


def test_service_and_workers_know_bystanders_by_the_pod_logs(service: Service) -> None:
    """By the service, which would call it a user, and by its workers, which would wait for it to leave."""
    device = service.settled(0, "clean").device
    with foreign_process(service.simulated_dir, device, POD) as exporter:
        done = scrub(service)
        assert (done.clean, done.why) == (True, "")
        assert exporter.lives()
    service.stop()
    assert [line for line in service.log_lines if "no longer clean" in line and f"(pid {exporter.pid}" in line] == []


def test_a_foreign_process_on_a_clean_gpu_logs_one_warning(service: Service) -> None:
    device = service.settled(0, "clean").device
    with foreign_process(service.simulated_dir, device) as shell:
        warning = service.hear("used without a grant")
        assert (warning["level"], warning["device"]) == ("warning", device)
        assert f"(pid {shell.pid}, no container)" in warning["event"]
        assert "it is used by" in scrub(service).why
        assert shell.lives()
    service.settled(0, "clean")
    service.stop()
    assert sum("used without a grant" in line for line in service.log_lines) == 1
