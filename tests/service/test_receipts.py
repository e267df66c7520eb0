"""Which directory a container gets for its receipt: from before its proof until the end of its tenancy, the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ground.errors import NotReady
from scrubber.core.acquire import ForClaim, ForJob, ForPod
from scrubber.core.fencing import Pods
from scrubber.core.guarded import Guarded
from scrubber.core.model import Receipt, State
from scrubber.core.record import Change, Record
from scrubber.receipts.tenant_files import ENVELOPE, PROOF, TenantFiles
from scrubber.service.context import ServiceContext
from tests.service.asking import let_on, reported, scrubs, written_down
from tests.service.world import World

FILES = [ENVELOPE, PROOF]
MOUNT = "defaults: {receipts: mount}"


class Follower:
    """Has the directories follow the ledger."""

    def __init__(self, files: TenantFiles) -> None:
        self.files, self.newest = files, ""

    def recorded(self, changes: Sequence[Change], _prove: object) -> None:
        for change in changes:
            self.files.changed(change.before, change.after, "an envelope", "its proof")

    def checkpoint(self, _included: object) -> None:
        raise AssertionError


@pytest.fixture
def mounting(build, tmp_path):
    """Worlds with clean devices, whose service signs."""

    async def mounting(policy: str = MOUNT) -> World:
        (tmp_path / "policy.yaml").write_text(f"name: of-this-test\n{policy}\n")
        world: World = build(policy=str(tmp_path / "policy.yaml"))
        await begun(world, tmp_path)
        await world.clean()
        return world

    return mounting


async def begun(world, directory):
    """The service has started."""
    await world.start()
    files = TenantFiles(directory / "receipts", b"secret")
    files.reconcile(world.life.ledger.records.values())
    world.life.ledger.notary = Follower(files)


def content(directory):
    """The files in a directory; None: there is no such directory."""
    return sorted(path.name for path in Path(directory).iterdir()) if Path(directory).exists() else None


async def ended(world, pod, device):
    """The pod has been seen, has ended, and its device is scrubbed."""
    await asyncio.sleep(2)
    seen = scrubs(world, device)
    world.node.end_container(pod)
    while scrubs(world, device) == seen:  # noqa: ASYNC110 - in virtual time
        await asyncio.sleep(1)


def receipts(world, device):
    """The directory of the device's present hand-over."""
    context = world.context
    return context.receipts(world.record(device), context.device_policy(device).policy, granted=True)


async def granted(world, device):
    """The directory that the answer of Acquire names."""
    grants = await world.tenant_requests.acquire([device], ForPod(announced=True))
    return grants[device].receipts


async def test_a_container_keeps_its_directory_over_every_restart(mounting, tmp_path):
    world = await mounting()
    device = world.uuids[0]
    first = await granted(world, device)
    written_down(world, pod=[device])
    await world.begin("pod", device)
    world.restart_kubelet()
    world.node.leave(world.node.gpus[device].users()[0])
    await world.begin("pod", device)  # its container starts again
    assert receipts(world, device) == first
    await world.stop()
    await begun(world, tmp_path)
    assert world.state(device) is State.IN_USE
    assert receipts(world, device) == first
    assert content(first) == []
    await world.stop()
    world.node.reboot()
    await begun(world, tmp_path)
    assert content(first) == []
    await world.clean()
    await world.begin("pod", device)  # the kubelet starts it again, with the mount that it knows
    assert content(first) == []
    await ended(world, "pod", device)
    assert content(first) is None
    following = await granted(world, device)
    assert following != first
    assert content(following) == FILES


async def test_a_pod_deleted_during_its_restart_ends_its_handover(mounting):
    world = await mounting("defaults: {receipts: mount, model: per-container}")
    device = world.uuids[0]
    first = await granted(world, device)
    written_down(world, pod=[device])
    await world.begin("pod", device)
    await asyncio.sleep(2)
    world.node.leave(world.node.gpus[device].users()[0])
    world.node.gpus[device].stalls = True
    with pytest.raises(NotReady):
        await world.tenant_requests.start([device], "pod", within=5)
    assert world.state(device) is State.SCRUBBING
    listed = reported(world, device).receipts
    world.node.gpus[device].stalls = False
    await world.clean(device)
    following = await world.tenant_requests.acquire([device], ForJob("a job"))
    assert following[device].receipts == listed != first
    assert (content(first), content(listed)) == (None, [])


async def test_the_next_pod_after_a_reboot_has_its_own_receipt(mounting, tmp_path):
    """The kubelet rejects the pods of before, and starts new ones."""
    world = await mounting()
    device = world.uuids[0]
    first = await granted(world, device)
    written_down(world, pod=[device])
    await world.begin("pod", device)
    await world.stop()
    world.node.reboot()
    await begun(world, tmp_path)
    await world.clean()
    listed = reported(world, device).receipts
    assert content(first) == []
    following = await granted(world, device)
    assert listed == following != first
    assert (content(first), content(following)) == (None, FILES)


async def test_two_containers_of_one_admission_have_one_directory(mounting):
    world = await mounting()
    device = world.uuids[0]
    assert await granted(world, device) == await granted(world, device) != ""


async def test_a_pod_that_follows_at_once_gets_its_own_directory(mounting):
    """The list still says that the last pod has the device when the kubelet asks for the next one."""
    world = await mounting()
    device = world.uuids[0]
    first = await granted(world, device)
    written_down(world, pod=[device])
    await world.begin("pod", device)
    await asyncio.sleep(2)
    listed = reported(world, device).receipts
    world.node.end_container("pod")
    assert await granted(world, device) == listed != first
    assert content(listed) == FILES


async def test_a_pod_that_waits_finds_its_receipt(mounting, monkeypatch):
    """Allocate is answered while the last pod still runs, and so the mount is made before its tenancy has ended."""
    world = await mounting()
    device = world.uuids[0]
    monkeypatch.setattr(ServiceContext, "containers_wait", lambda _self, _device: True)
    await let_on(world, "first", device)
    await asyncio.sleep(2)
    listed = reported(world, device).receipts
    assert await granted(world, device) == listed
    assert world.state(device) is State.IN_USE
    assert content(listed) == []
    await ended(world, "first", device)
    written_down(world, next=[device])
    await world.begin("next", device)
    assert receipts(world, device) == listed
    assert content(listed) == FILES


async def test_a_claim_keeps_the_directory_of_its_own_handover(mounting):
    world = await mounting()
    device = world.uuids[0]
    claim = ForClaim("claim", Pods(frozenset()))
    paths = [(await world.tenant_requests.acquire([device], claim))[device].receipts for _ in range(2)]
    assert paths[0] == paths[1] != reported(world, device).receipts
    assert content(paths[0]) == FILES


@pytest.mark.parametrize("signs", [True, False])
async def test_no_directory_without_a_signature_or_the_word_mount(mounting, signs):
    world = await mounting("defaults: {receipts: keep}" if signs else MOUNT)
    if not signs:
        world.life.ledger.notary = None
    device = world.uuids[0]
    assert (await granted(world, device), reported(world, device).receipts) == ("", "")


@pytest.mark.parametrize("named", [True, False])
async def test_the_policy_decides_whether_a_receipt_names_the_board(build, tmp_path, named):
    (tmp_path / "policy.yaml").write_text(f"name: of-this-test\ndefaults: {{serial_in_receipts: {named}}}\n".lower())
    world = build(policy=str(tmp_path / "policy.yaml"))
    gpu = world.node.gpus[world.uuids[0]]
    gpu.info = replace(gpu.info, serial="1654023000004")
    await world.start()
    await world.clean(gpu.info.uuid)
    serials = set()

    class Notes:
        """Signs nothing, and notes what it would name."""

        def seal(self, record: Record, receipt: Receipt, _guarded: Guarded) -> Receipt:
            serials.add(record.device.serial)
            return receipt

        def close(self, *_: object) -> str:
            return ""

    world.life.jobs.sign_with(Notes())
    await ended(world, await world.tenancy(gpu.info.uuid), gpu.info.uuid)
    await world.clean(gpu.info.uuid)
    assert serials == {"1654023000004" if named else None}
