"""A scrub that is due is never left out, however much what happens looks like something harmless.

The ids are those of the cases in which a naive implementation skips a needed scrub. Not here:

* S6 is ``test_x21_s6_after_a_reboot_pods_start_on_scrubbed_gpus``.
* S9, another plugin that takes the resource over, looks to us like S10: a container that nobody asked for.
* S12, S13 and S19 are cases of the DRA interface, which this plugin does not serve; S18 needs MIG slices, which
  simulated GPUs do not have.
* S11: ``test_s11_a_device_with_leaked_memory_is_not_clean``. S15:
  ``test_s15_less_coverage_than_the_policy_orders_fails_the_job``. S16: ``test_s16_the_history_follows_the_uuid``. S17:
  ``test_a_proof_is_valid_while_it_is_young_and_observed``.
"""

from __future__ import annotations

import signal
import sys

from demo.installation import RESOURCE
from demo.standins.pods import Container, ContainerKind, Phase
from plugin.kubelet_api import deviceplugin_pb2 as wire
from scrubber.devices.simulated import drills, layout
from tests.flows.node import UNHELD, brisk
from tests.node.open_programs import IN_TRANSIT

ONE = {RESOURCE: 1}
OPENS_AGAIN = 'while read -r _; do exec 8<>"$1" 9<>"$0"; read -r _; exec 8>&- 9>&-; done'


async def test_s1_s2_s3_s5_the_same_name_is_no_restart(node):
    first = await node.run("same-name", gpus=2)
    gpus = node.kubelet.held(first)["main"][RESOURCE]
    await node.kubelet.delete(first)
    second = await node.run("same-name", gpus=2)
    assert node.kubelet.held(second)["main"][RESOURCE] == gpus
    assert [await node.scrubs(uuid) for uuid in gpus] == [2, 2]
    await node.kubelet.delete(second)
    one, other = node.gpu(await node.run("same-name")), node.gpu(await node.run("other"))
    assert one != other
    assert [await node.scrubs(uuid) for uuid in gpus] == [3, 3]


async def test_s4_unequal_numbers_of_starts_and_grants_hide_no_tenant(build):
    node = await build(1)
    init = Container("fetch", ONE, ContainerKind.INIT)
    first = node.pod("first", init, Container("main", ONE))  # admitted twice, started once
    await node.kubelet.admit(first)
    await node.kubelet.start_container(first, "fetch")
    await node.kubelet.delete(first)
    second = await node.run("second", init, Container("main", ONE))
    uuid = node.gpu(second)
    for _ in range(2):
        await node.kubelet.restart_container(second, "main")
    await node.kubelet.delete(second)
    await node.run("third")
    assert (len(node.asked("Allocate")), len(node.asked("PreStartContainer"))) == (5, 6)
    assert await node.scrubs(uuid) == 3


async def test_a_short_use_during_a_scrub_leaves_no_receipt(node):
    uuid = await node.leave(await node.run("first"))
    await node.job(uuid)
    passed = await node.scrubs(uuid)
    await node.short_use(uuid)
    status = await node.reach(uuid, lambda device: device.setback != "")
    assert "another process has used the device since its clear began" in status.setback
    assert await node.scrubs(uuid) == passed
    node.heal(uuid)
    await node.clean(uuid)


async def test_on_chip_memory_is_clean_before_the_next_pod(build):
    node = await build(1, "{paths: {first_look: fast}}")
    [uuid] = node.stage.uuids
    chip = layout.find(node.stage.simulated, uuid).chip
    for name in ("first", "second"):  # the runtime, too, looks at the chip before the second starts
        pod = await node.run(name)
        assert pod.uid.encode() in chip.read_bytes()
        await node.kubelet.delete(pod)
    await node.clean()
    assert not any(chip.read_bytes())


async def test_a_short_use_of_a_clean_gpu_ends_its_proof(build):
    """Each begins and ends within milliseconds, just before the request."""
    node = await build(1)
    [uuid] = node.stage.uuids
    for _ in range(3):
        await node.clean()
        done = await node.scrubs(uuid)
        await node.short_use(uuid, b"<a-visitor>")
        pod = await node.run("next")
        assert (await node.scrubs(uuid), b"<a-visitor>" in node.memory(uuid)) == (done + 1, False)
        await node.kubelet.delete(pod)


async def test_an_explanation_names_who_keeps_a_gpu_out(build):
    node = await build(1)
    [uuid] = node.stage.uuids
    place = layout.find(node.stage.simulated, uuid)
    user = await node.program("sh", "-c", OPENS_AGAIN, place.memory, place.chip)
    assert user.stdin is not None
    assert user.stdout is not None
    for _ in range(2):
        await node.clean()
        user.stdin.write(b"open\n")
        await node.reach(uuid, lambda device: device.state == "dirty")
        user.stdin.write(b"close\n")
    await node.clean()
    async with node.stage.admin() as admin:
        advice = (await admin.explain(uuid)).advice
    await user.communicate(b"")
    assert f"(pid {user.pid}, user" in advice[0]
    assert advice[0].endswith("has ended 2 proofs or scrubs of the GPU recently")
    assert f"`kill {user.pid}`" in advice[1]


async def test_s7_an_old_grant_belongs_to_the_pod_that_starts(build):
    node = await build(1, UNHELD)
    pod = node.pod("train")
    await node.kubelet.admit(pod)
    uuid = node.gpu(pod)
    await node.kubelet.kill()
    async with node.foreign_process(uuid, pod.uid, f"<{pod.uid}>".encode()):  # started without PreStartContainer
        await node.kubelet.start()
        await node.offered(1)
        await node.reach(uuid, lambda device: device.owner == pod.uid)
        assert await node.kubelet.sync(pod)
        assert (await node.scrubs(uuid), bool(node.memory(uuid))) == (1, True)
    await node.kubelet.delete(pod)
    await node.run("next")
    assert await node.scrubs(uuid) == 2


async def test_s8_a_service_killed_after_prestart_still_knows_the_owner(build):
    node = await build(1, UNHELD)  # with a list that outlives the service for seconds, not for a minute
    pod = node.pod("train")
    await node.kubelet.admit(pod)
    uuid = node.gpu(pod)
    await node.stage.containers.open_sandbox(pod)
    async with node.door() as plugin:
        await plugin.PreStartContainer(wire.PreStartContainerRequest(devices_ids=[uuid]))
    await node.stage.service.end(signal.SIGKILL)
    await node.offered(0)
    await node.stage.start()
    assert (await node.status(uuid)).owner == pod.uid
    async with node.foreign_process(uuid, pod.uid, b"a secret"):  # the container that it said yes to comes only now
        await node.offered(1)
    await node.kubelet.delete(pod)
    await node.run("next")
    assert await node.scrubs(uuid) == 2


async def test_s10_use_without_a_grant_makes_a_clean_gpu_dirty(build):
    node = await build(1, UNHELD)
    [uuid] = node.stage.uuids
    async with node.foreign_process(uuid, "privileged-pod", b"a secret of the privileged"):
        await node.health(uuid, "Unhealthy")
        [soiled] = await node.history(uuid, "soiled")
        assert "without a grant" in soiled.text
        assert b"a secret of the privileged" in node.memory(uuid), "it is let be"
    await node.clean(uuid)
    await node.health(uuid, "Healthy")
    assert (node.memory(uuid), await node.scrubs(uuid)) == (b"", 2)


async def test_s14_no_pod_starts_after_a_scrub_that_failed(node):
    first = await node.run("first")
    uuid = node.gpu(first)
    drills.bad_memory(node.stage.simulated, uuid, 4711, 5)
    await node.kubelet.delete(first)
    await node.reach(uuid, lambda device: device.state == "quarantined")
    await node.health(uuid, "Unhealthy")
    assert await node.scrubs(uuid) == 1
    assert node.gpu(await node.run("next")) != uuid
    last = await node.kubelet.run(node.pod("last"))
    assert (last.phase, len(node.kubelet.starts)) == (Phase.FAILED, 2)


async def test_s20_a_gpu_held_by_a_hidden_process_goes_nowhere(build):
    """The last tenant may have left it open in a socket: the driver lists a user, a search of /proc finds nobody."""
    node = await build(1, brisk("budgets: {allocate: 4s}"))
    [uuid] = node.stage.uuids
    chip = layout.find(node.stage.simulated, uuid).chip
    hidden = await node.program(sys.executable, "-c", IN_TRANSIT, chip)
    try:
        assert hidden.stdout is not None
        assert await hidden.stdout.readline()
        status = await node.kubelet.admit(node.pod("next"))
        assert status.phase is Phase.FAILED
        await node.reach(uuid, lambda device: "it cannot be proven that no process uses it" in device.setback)
    finally:
        hidden.kill()
        await hidden.wait()
    await node.clean(uuid)
    await node.offered(1)
    await node.run("last")
    assert await node.scrubs(uuid) == 2, "nobody knows what the hidden process wrote"
