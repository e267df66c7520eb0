"""A service of this version starts on the state that an older one has left, on the same GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoclave.cli import service_call
from scrubber.devices.simulated import layout
from scrubber.ledger import audit, reading
from tests import older_states
from tests.live import Service

ONLY_SIMULATED = 6  # the exit code of a receipt that is good


@pytest.fixture(params=older_states.OF_ONE_STORY, ids=older_states.name)
def updated(request: pytest.FixtureRequest, short_tmp: Path) -> Iterator[Service]:
    older_states.unpack(request.param, short_tmp / "state")
    known = {it.device.index: it.device.uuid for it in reading.read(short_tmp / "state/ledger.db").records.values()}
    layout.create(short_tmp / "gpus", len(known), 2**20)
    for place in layout.places(short_tmp / "gpus"):
        layout.write(place.device, replace(place.info(), uuid=known[place.info().index]))
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
    updated.stop()
    assert audit.verify(updated.root / "state/ledger.db").broken is None
