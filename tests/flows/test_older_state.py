"""A service of this version starts on the state that an older one has left, on the same GPUs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoclave.cli import service_call
from ground import paths
from scrub_api import admin_client
from scrubber.devices.simulated import layout
from scrubber.ledger import reading
from tests import older_states
from tests.live import Service

OF_A_JOB = 2  # whose memory nobody touches
ONLY_SIMULATED = 6  # the exit code of a receipt that is good


@pytest.fixture(params=older_states.ALL, ids=older_states.name)
def updated(request: pytest.FixtureRequest, short_tmp: Path) -> Iterator[Service]:
    for name in ("state", "before"):
        older_states.unpack(request.param, short_tmp / name)
    known = {it.device.index: it for it in reading.read(short_tmp / "before/ledger.db").records.values()}
    [incarnation] = {it.incarnation for it in known.values()}
    gpus, run_dir = short_tmp / "gpus", short_tmp / "run"
    layout.create(gpus, len(known), 2**20)
    driver = layout.Driver(incarnation.driver.split()[-1], layout.DRIVER_VERSION, incarnation.boot_id)
    layout.write(layout.driver_file(gpus), driver)  # the service loads it again in another boot
    for place in layout.places(gpus):
        device = known[place.info().index].device
        size = device.memory_bytes if device.index == OF_A_JOB else place.info().memory_bytes
        layout.write(place.device, replace(place.info(), uuid=device.uuid, memory_bytes=size))
    run_dir.mkdir(mode=0o700)
    shutil.copy(short_tmp / "before/ledger.db.head", paths.ledger_head(run_dir))  # as the older service has left it
    running = Service(short_tmp, len(known))
    yield running
    if running.process.poll() is None:
        running.stop()


def run(service: Service, *words: object) -> tuple[int, str]:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "autoclave",
        *map(str, words),
        "--state-dir",
        service.root / "state",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


def named_for_a_scrub(place: Path) -> set[str]:
    """The GPUs of which ``doctor --for-update`` says that a scrub follows, but no test that is due later."""
    command = [sys.executable, "-m", "autoclave", "doctor", "--for-update", str(place), "-o", "json"]
    findings = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["findings"]
    scrubs = [it["text"] for it in findings if it["name"] == "scrub"]
    found = [re.match(r"GPU (.+): a scrub follows the update, because", text) for text in scrubs]
    return {name for each in found if each is not None for name in each[1].split(", ")}


def scrubbed(service: Service, these: set[str]) -> set[str]:
    """The GPUs that were scrubbed without a request since the update, as soon as these are among them."""
    rows = reading.read(service.root / "before/ledger.db").records
    newest = max(record.since.wall for record in rows.values())

    async def until(admin: admin_client.AdminClient) -> set[str]:
        while True:
            seen = (await admin.status()).service.ledger_rows
            begun = await admin.history(kinds=("scrub-started",), since=newest)
            names = {it.name for it in begun}
            if these <= names:
                return names
            await admin.status(newer_than=seen, wait=10)

    return service_call.ask(service.run_dir, until)


def test_an_update_forgets_no_quarantine_and_no_receipt(updated: Service, tmp_path: Path) -> None:
    assert updated.settled(0, "clean").healthy, "its scrub was cut off"
    device = updated.settled(1, "quarantined")
    assert (device.quarantine.detail, device.healthy) == ("its riser is loose", False)
    entries = service_call.ask(updated.run_dir, lambda admin: admin.history("2"))
    [receipt] = [json.loads(it.body)["grant"]["receipt"] for it in entries if it.kind == "granted"]
    assert run(updated, "receipt", "export", receipt, tmp_path)[0] == 0
    (tmp_path / "key.pem").write_text(run(updated, "receipt", "key")[1])
    [document] = tmp_path.glob("*/receipt.dsse.json")
    verify: list[str | Path] = [
        sys.executable,
        "-m",
        "autoclave",
        "receipt",
        "verify",
        document,
        "--key",
        tmp_path / "key.pem",
    ]
    assert subprocess.run(verify, check=False).returncode == ONLY_SIMULATED
    named = named_for_a_scrub(updated.root / "before")
    assert scrubbed(updated, named) == named
    updated.stop()
    assert reading.verify(updated.root / "state/ledger.db").broken is None
