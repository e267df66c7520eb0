"""The whole service as a process: what it signs, with which key, and what it does where it cannot sign."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrubber.ledger import ledger_rows, reading
from scrubber.receipts import dsse, key, merkle, note
from tests.live import Service

SCRIPT = Path(__file__).parents[2] / "docs/receipts/verify.py"
QUICK = "name: quick\ndefaults: {paths: {first_look: fast}, clear: {passes: zero}}\n"


@pytest.fixture
def service(short_tmp: Path) -> Iterator[Service]:
    """One clean GPU."""
    (short_tmp / "policy.yaml").write_text(QUICK)
    it = Service(short_tmp, 1, "--policy", short_tmp / "policy.yaml", "--node-name", "node-7")
    it.settled(0, "clean")
    yield it
    it.stop()


def tenant_files(state: Path) -> list[Path]:
    return sorted(path for path in (state / "receipts").glob("*/*"))


def checked(state: Path, trusted: bytes) -> tuple[dict[str, Any], note.Checkpoint]:
    """What the tenant of the GPU reads, and the checkpoint that goes with it, both signed by this key."""
    envelope, proof = (path.read_text() for path in tenant_files(state))
    statement = json.loads(dsse.opened(envelope, [trusted]))
    proven = note.parse_proof(proof)
    checkpoint = note.opened(proven.checkpoint, [trusted])
    leaf = merkle.leaf_of_row(proven.extra.decode(), envelope)
    assert merkle.root_above(proven.index, checkpoint.size, leaf, proven.hashes) == checkpoint.root
    return statement, checkpoint


def notes(state: Path) -> list[Any]:
    """What the ledger notes of keys."""
    return [row["body"] for row in reading.export(state / "ledger.db") if row["kind"] == ledger_rows.KEY]


def test_a_tenant_checks_its_receipt_and_each_following_key(service: Service) -> None:
    state = service.root / "state"
    first = key.read_key(state).public_key
    statement, checkpoint = checked(state, first)
    (service.root / "node.pem").write_text(key.public_pem(first))
    command: list[str | Path] = [
        sys.executable,
        SCRIPT,
        tenant_files(state)[0].parent,
        "--key",
        service.root / "node.pem",
    ]
    script = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (script.returncode, script.stdout.splitlines()[2].split(":")[0]) == (6, "SIMULATED GPU, no claim")
    receipt = service.settled(0, "clean").receipt
    assert receipt is not None
    assert (statement["subject"][1]["digest"]["sha256"], receipt.signed_by) == (receipt.digest, key.key_id(first))
    assert checkpoint.origin == "autoclave/node-7"

    following = key.make_next(state).public_key
    service.stop()
    service.start()
    service.settled(0, "clean")  # the proof ended with the service: it is scrubbed again
    _, later = checked(state, following)
    [begun, rotated] = notes(state)
    assert begun == {"key": key.key_id(first), "public_key": first.hex()}
    assert dsse.successor(rotated, first) == following
    result = reading.verify(state / "ledger.db", [checkpoint, later])
    assert (result.broken, result.vouched) == (None, later.size)


def test_the_key_before_a_rotation_put_back_is_reported(service: Service) -> None:
    folder = service.root / "state" / "receipt-key"
    old = (folder / "key.pem").read_bytes()
    key.make_next(service.root / "state")
    service.stop()
    service.start()
    service.stop()
    (folder / "key.pem").write_bytes(old)
    service.start("another key signs receipts, and the last one does not vouch for it")


def test_a_rotation_that_was_killed_is_noted_once(service: Service) -> None:
    """A row that repeats it would follow no key: whoever goes from key to key would stop there."""
    state = service.root / "state"
    before = {path: path.read_bytes() for path in [state / "receipt-key" / "key.pem"]}
    first, following = key.read_key(state).public_key, key.make_next(state).public_key
    before[state / "receipt-key" / "next.pem"] = (state / "receipt-key" / "next.pem").read_bytes()
    service.stop()
    service.start()
    service.stop()
    for path, content in before.items():  # as after a kill between the row and the files
        path.write_bytes(content)
        path.chmod(0o600)
    service.start()
    [_, rotated] = notes(state)
    assert dsse.successor(rotated, first) == following == key.read_key(state).public_key
    assert not any("vouch" in line for line in service.log_lines)


def test_an_unexpected_new_key_is_reported(service: Service) -> None:
    state = service.root / "state"
    service.stop()
    shutil.rmtree(state / "receipt-key")
    service.start("another key signs receipts, and the last one does not vouch for it")
    service.hear("serving")
    [_, replaced] = notes(state)
    assert replaced == {"key": key.key_id(key.read_key(state).public_key), "public_key": replaced["public_key"]}


def test_a_key_that_others_may_have_read_signs_nothing(service: Service) -> None:
    state = service.root / "state"
    (state / "receipt-key" / "key.pem").chmod(0o644)
    service.stop()
    service.start("receipts are not signed")
    service.hear("serving")
    assert (receipt := service.settled(0, "clean").receipt) is not None
    assert receipt.signed_by == ""
    assert not tenant_files(state), "a container that starts now must not find the receipt of an earlier scrub"
    assert list((state / "receipts").iterdir()), "a container that mounts its directory must be able to start"


def test_a_broken_library_stops_no_service(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = service.root / "broken" / "cryptography"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libssl.so.3 is missing')\n")
    service.stop()
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    service.start("receipts are not signed")
    assert "libssl.so.3 is missing" in service.log_lines[-1]
    service.hear("serving")
