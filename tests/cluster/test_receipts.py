"""What a tenant finds in its container: a receipt that anybody can check who has the node's public key."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ground import boot
from scrubber.receipts import key
from tests.cluster.cluster import container
from tests.cluster.isolated import STATE

INSIDE = "run/autoclave/receipts"
VERIFIER = Path(__file__).parents[2] / "docs/receipts/verify.py"


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    """The node's public key, as an operator hands it out."""
    file = tmp_path / "node.pem"
    file.write_text(key.public_pem(key.read_key(STATE / "autoclave").public_key))
    return file


def receipts(cluster, pod: str) -> list[Path]:
    """The directories of receipts, as the pod's container sees them."""
    return sorted((cluster.root(pod) / INSIDE).iterdir())


def verified(folder: Path, trusted: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Verify elsewhere: with the script, the key and the copied files, and with nothing else of Autoclave."""
    command = [sys.executable, "-I", str(VERIFIER), str(folder), "--key", str(trusted), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


async def test_a_receipt_copied_from_a_container_verifies_elsewhere(cluster, autoclave, trusted, tmp_path):
    autoclave.rule(receipts="mount")
    await cluster.hold("first", gpus=2)
    copies = [shutil.copytree(folder, tmp_path / folder.name) for folder in receipts(cluster, "first")]
    said = [verified(copy, trusted, "--boot", boot.boot_id()) for copy in copies]
    assert [run.stderr for run in said] == ["", ""]
    uuids = {str(each.index): each.device for each in await autoclave.devices(lambda _: True)}
    assert {uuids[index] for index in cluster.gpus("first")} == {
        run.stdout.split("\ngpu ")[1].split()[0] for run in said
    }

    await cluster.delete("first")
    await cluster.hold("second", gpus=4)
    old, new = {copy.name for copy in copies}, {folder.name for folder in receipts(cluster, "second")}
    assert (len(new), old & new) == (4, set())
    assert not any((STATE / "autoclave/receipts" / name).exists() for name in old)
    refused = verified(copies[0], trusted, "--handover", min(new))
    assert refused.returncode == 1
    assert refused.stderr.startswith("not verified: handover: the receipt is not for")


async def test_a_restarted_container_finds_its_receipt(cluster, autoclave, trusted):
    autoclave.rule(receipts="mount")
    await cluster.create("pod", container(), restartPolicy="Always")
    await cluster.said("pod", "HOLDING")
    [before] = receipts(cluster, "pod")
    cluster.crash("pod")
    await cluster.said("pod", "HOLDING", more=1)
    [after] = receipts(cluster, "pod")
    assert after.name == before.name
    assert verified(after, trusted).returncode == 6  # of a simulated GPU
