"""The create gate is installed whole, and in force only where the container runtime asks."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from ground.aio import Changed
from ground.errors import FatalError
from scrubber.core import events as ev
from scrubber.create_gate import installation
from scrubber.create_gate.installation import ASKED, RUNTIMES, SPECIFICATION
from scrubber.ledger.ledger import Ledger
from scrubber.receipts.tenant_files import ENVELOPE, PROOF
from tests.core import lives
from tests.ledger import memory_store
from tests.live import Service
from tests.patience import WITHIN
from tests.plugin.live_plugin import until_files


@pytest.fixture
def news():
    """What the gate notifies."""
    return Changed()


@pytest.fixture
def runtime(tmp_path):
    """The socket of the container runtime."""
    socket = tmp_path / "host" / RUNTIMES[0]
    socket.parent.mkdir(parents=True)
    socket.touch()
    return socket


@pytest.fixture
def install(tmp_path, program, news, runtime):
    """Install the gate of a service."""
    assert runtime.exists()
    for name in ("cdi", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o700)
    places = (tmp_path / "cdi", tmp_path / "state", tmp_path / "run/gate.sock", tmp_path / "host", 120.0)
    return lambda news=news: installation.install(program, *places, news)


def counts(gate):
    """Which passages count."""
    return {device: it.counts for device, it in gate.passages().items()}


def test_a_passage_counts_for_the_next_run_of_the_service(install, news):
    gate = install()
    gate.cover(["GPU-1", "GPU-2"])
    assert counts(gate) == {}
    gate.let_through("GPU-1", "pod", 7.0, gate.era())
    assert news.notifications == 1, "the plugin learns it at once"
    before = gate.passages()
    restarted = install()
    restarted.cover(["GPU-1", "GPU-2", "GPU-3"])
    assert counts(restarted) == {"GPU-1": True}
    assert restarted.passages() == before


def test_the_program_waits_nearly_as_long_as_the_kubelet(install, tmp_path):
    """The program speaks before the container runtime ends it, and that happens before the kubelet gives up."""
    install().cover(["GPU-1"])
    [device] = json.loads((tmp_path / "cdi" / SPECIFICATION).read_bytes())["devices"]
    [hook] = device["containerEdits"]["hooks"]
    assert 100 < int(hook["args"][-1]) < hook["timeout"] < 120


def test_a_claims_container_gets_its_receipts_by_its_gate(install, tmp_path):
    """The gate of a device is in the answers of Allocate, which have the mount already."""
    gate, folder = install(), tmp_path / "0123"
    folder.mkdir()
    gate.receipts = {"GPU-1": str(folder), "GPU-2": str(tmp_path / "missing"), "GPU-3": ""}.__getitem__
    gate.cover(["GPU-1", "GPU-1.claim", "GPU-2.claim", "GPU-3.claim"])
    made = edits(tmp_path / "cdi")
    at = "/run/autoclave/receipts"
    mount = {"hostPath": str(folder), "containerPath": f"{at}/0123", "options": ["ro", "nosuid", "nodev", "bind"]}
    assert made["GPU-1.claim"]["mounts"] == [mount]
    assert made["GPU-1.claim"]["env"] == [f"AUTOCLAVE_RECEIPTS={at}"]
    assert [set(made[name]) for name in ("GPU-1", "GPU-2.claim", "GPU-3.claim")] == [{"hooks"}] * 3


def edits(cdi):
    """What the container runtime does for a container with each gate."""
    devices = json.loads((cdi / SPECIFICATION).read_bytes())["devices"]
    return {device["name"]: device["containerEdits"] for device in devices}


def content(folder):
    """The names of the files."""
    return sorted(path.name for path in Path(folder).iterdir())


async def test_the_service_names_the_receipts_of_a_claim(short_tmp, program):
    (short_tmp / "policy.yaml").write_text("name: quick\ndefaults: {receipts: mount, paths: {first_look: fast}}\n")
    (cdi := short_tmp / "cdi").mkdir()
    service = Service(short_tmp, 1, "--policy", short_tmp / "policy.yaml", "--create-gate", program)
    try:
        gpu = await asyncio.to_thread(service.settled, 0, "clean")
        name = f"{gpu.device}.claim-1"
        service.popen("acquire", "0", "--owner", "claim-1").wait()
        await until_files(lambda: name in edits(cdi), cdi)
        [mount] = edits(cdi)[name]["mounts"]
        assert content(mount["hostPath"]) == [ENVELOPE, PROOF]
    finally:
        service.kill()


def another_program(path):
    path.write_text(path.read_text().replace("hooks", "hooky"))


def restart(path):
    path.unlink()
    path.touch()


@pytest.mark.parametrize("while_down", [False, True], ids=["while it runs", "while it is down"])
@pytest.mark.parametrize("change", [another_program, os.unlink])
def test_another_specification_ends_what_counts(install, news, tmp_path, change, while_down):
    gate = install()
    gate.cover(["GPU-1"])
    gate.let_through("GPU-1", "pod", 7.0, gate.era())
    waits = gate.era()
    change(tmp_path / "cdi" / SPECIFICATION)
    assert not gate.covers("GPU-1")
    gate = install() if while_down else gate
    assert counts(gate) == {"GPU-1": False}
    assert news.notifications == 2, "the plugin learns it at once"
    gate.cover(["GPU-1"])
    assert (gate.covers("GPU-1"), counts(gate)) == (True, {"GPU-1": False})
    gate.let_through("GPU-1", "pod", 8.0, waits)
    assert counts(gate) == {"GPU-1": False}, "it asked before the change"
    gate.let_through("GPU-1", "pod", 9.0, gate.era())
    assert counts(gate) == {"GPU-1": True}


def test_another_run_of_the_container_runtime_must_ask_again(install, runtime):
    gate = install()
    gate.cover(["GPU-1"])
    gate.let_through("GPU-1", "pod", 7.0, gate.era())
    runtime.rename(runtime.with_name("before"))  # so that the new file has another inode
    runtime.touch()
    assert (gate.covers("GPU-1"), counts(gate)) == (True, {"GPU-1": False})


@pytest.mark.parametrize("change", [another_program, os.unlink])
async def test_a_changed_specification_is_written_again_at_once(install, tmp_path, change, monkeypatch):
    """The change is the event: no timer ends within this test."""
    monkeypatch.setattr(installation, "TRIED_EVERY", 2 * WITHIN)
    ledger = Ledger(memory_store.MemoryStore(), lambda: lives.NOW)
    await ledger.append("op", (lives.DEVICE.uuid, ev.Discovered(lives.DEVICE, lives.HERE)))
    gate = install(news := Changed(ledger.changed))
    following = asyncio.create_task(gate.follow(ledger))
    await covered(gate, news)
    specification = tmp_path / "cdi" / SPECIFICATION
    written = specification.read_bytes()
    change(specification)
    assert not gate.covers(lives.DEVICE.uuid)
    await covered(gate, news)
    assert specification.read_bytes() == written
    following.cancel()


async def covered(gate, news):
    """Wait until the gate covers the device."""
    while not gate.covers(lives.DEVICE.uuid):
        assert await news.after(news.notifications, WITHIN)


def test_a_run_without_the_gate_ends_what_counts(install, tmp_path):
    gate = install()
    gate.cover(["GPU-1"])
    gate.let_through("GPU-1", "pod", 7.0, gate.era())
    installation.open_for_all(tmp_path / "cdi", tmp_path / "run/gate.sock")
    specification = json.loads((tmp_path / "cdi" / SPECIFICATION).read_bytes())
    assert specification["devices"] == [{"name": "GPU-1", "containerEdits": {"env": ["AUTOCLAVE_GATE=off"]}}]
    again = install()
    again.cover(["GPU-1"])
    assert counts(again) == {}


@pytest.mark.parametrize(
    "kept", [b"", b"[]", b"[" * 100_000, b'{"specification": [], "runtimes": {}, "passages": {"GPU-1": [7]}}']
)
def test_what_cannot_be_read_counts_for_nothing(install, tmp_path, kept):
    (tmp_path / "run" / ASKED).write_bytes(kept)
    assert counts(install()) == {}


@pytest.mark.parametrize("found", ["pipe", "deep", "link"])
def test_a_file_that_is_no_specification_is_never_waited_for(tmp_path, found):
    path = tmp_path / SPECIFICATION
    match found:
        case "pipe":
            os.mkfifo(path)
        case "deep":
            path.write_text("[" * 100_000)
        case "link":
            path.symlink_to(os.devnull)
    with pytest.raises(OSError, match=SPECIFICATION):
        installation.open_for_all(tmp_path, tmp_path / "gate.sock")


def test_only_a_device_of_the_specification_has_a_gate(install, tmp_path):
    gate = install()
    assert gate.name("GPU-1") == ""
    assert [gate.cover(["GPU-1"]), gate.cover(["GPU-1"])] == [True, False]
    assert gate.name("GPU-1") == "autoclave.internal/gate=GPU-1"
    (tmp_path / "cdi" / SPECIFICATION).unlink()
    (tmp_path / "cdi").rmdir()
    with pytest.raises(OSError, match="No such file"):
        gate.cover(["GPU-1", "GPU-2"])
    assert gate.name("GPU-2") == ""


def test_a_program_that_does_not_run_is_not_installed(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(FatalError, match="it does not run: exit code 0"):
        installation.install(broken, tmp_path, tmp_path / "state", tmp_path / "gate.sock", tmp_path, 120.0, Changed())
    assert list((tmp_path / "state/gate").iterdir()) == []
