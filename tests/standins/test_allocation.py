"""Admission: which devices, which calls, and what an error does. Ids: docs/kubelet-stand-in.md."""

import asyncio

import pytest

from demo.standins.allocation import KubeletPanic
from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.kubelet import NotRunning
from demo.standins.pods import Container, ContainerKind, Phase, Pod
from tests.patience import WITHIN
from tests.standins.conftest import during


def container(name, count, kind=ContainerKind.APP):
    return Container(name, {GPU: count}, kind)


def admissions(kubelet):
    """The calls of admission, short: ("prefer", available, must, size) or ("allocate", ids)."""
    short: list[tuple[object, ...]] = []
    for call in kubelet.calls:
        if call.method == "GetPreferredAllocation":
            short.append(("prefer", "".join(call.ids), "".join(call.must_include), call.size))
        elif call.method == "Allocate":
            short.append(("allocate", "".join(call.ids)))
    return short


async def test_x2_an_app_reuses_its_inits_device_without_a_preference(kubelet, plugin):
    await kubelet.admit(Pod("p", (container("i", 1, ContainerKind.INIT), container("a", 1), container("b", 2))))
    assert admissions(kubelet) == [
        ("prefer", "0123", "", 1),
        ("allocate", "0"),
        ("allocate", "0"),
        ("prefer", "123", "", 2),
        ("allocate", "12"),
    ]
    assert {call.deadline for call in kubelet.calls if call.method == "Allocate"} == {None}
    assert plugin.left["Allocate"] is None or plugin.left["Allocate"] > 1e9


async def test_x3_inits_sidecar_and_app_are_allocated_in_order(kubelet):
    inits = container("i1", 1, ContainerKind.INIT), container("i2", 2, ContainerKind.INIT)
    await kubelet.admit(Pod("p", (*inits, container("s", 1, ContainerKind.SIDECAR), container("main", 1))))
    assert admissions(kubelet) == [
        ("prefer", "0123", "", 1),
        ("allocate", "0"),
        ("prefer", "0123", "0", 2),
        ("allocate", "01"),
        ("allocate", "0"),
        ("allocate", "1"),
    ]


async def test_r2_a_sidecars_device_is_not_reused(kubelet):
    pod = Pod(
        "p",
        (
            container("i1", 1, ContainerKind.INIT),
            container("s", 1, ContainerKind.SIDECAR),
            container("i2", 1, ContainerKind.INIT),
            container("a", 1),
            container("b", 2),
        ),
    )
    await kubelet.admit(pod)
    allocated = [call[1] for call in admissions(kubelet) if call[0] == "allocate"]
    assert allocated == ["0", "0", "1", "1", "23"]
    assert kubelet.held(pod)["b"] == {GPU: ("2", "3")}


async def test_x22_an_error_from_the_preference_fails_the_pod(kubelet, plugin):
    plugin.fail["GetPreferredAllocation"] = "not today"
    pod = Pod.of("p", {GPU: 1})
    assert (await kubelet.admit(pod)).phase is Phase.FAILED
    assert "GetPreferredAllocation rpc failed with err: rpc error: code = Internal desc = not today" in pod.message


async def test_x7_an_error_from_allocate_fails_the_pod(kubelet, plugin):
    plugin.fail["Allocate"] = "GPU is dirty"
    pod = Pod.of("p", {GPU: 1})
    status = await kubelet.run(pod)
    assert status.phase is Phase.FAILED
    assert status.reason == "UnexpectedAdmissionError"
    assert status.message == (
        "Pod was rejected: Allocate failed due to rpc error: code = Internal desc = GPU is dirty, which is unexpected"
    )
    assert kubelet.starts == []
    plugin.fail.clear()
    assert (await kubelet.run(Pod.of("next", {GPU: 4}))).phase is Phase.RUNNING


async def test_x8_a_plugin_that_dies_inside_allocate_fails_the_pod(kubelet, plugin):
    plugin.hold["Allocate"] = asyncio.Event()
    pod = Pod.of("p", {GPU: 1})
    admitting = asyncio.create_task(kubelet.admit(pod))
    await during(kubelet, "Allocate")
    await plugin.stop()
    assert (await asyncio.wait_for(admitting, WITHIN)).phase is Phase.FAILED
    assert "code = Unavailable" in pod.message or "code = Canceled" in pod.message


async def test_x13_no_healthy_device_fails_the_pod_without_a_call(kubelet, plugin):
    plugin.show(**dict.fromkeys(("g0", "g1", "g2", "g3"), "Unhealthy"))
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 0})
    pod = Pod.of("p", {GPU: 1})
    await kubelet.admit(pod)
    assert "no healthy devices present; cannot allocate unhealthy devices example.com/gpu" in pod.message
    assert admissions(kubelet) == []


async def test_x31_a_later_containers_failure_frees_earlier_devices_silently(node):
    async with node.ready(offers={"ids": "01", "preferred": False}) as (kubelet, _):
        pod = Pod("p", (container("a", 1), container("b", 2)))
        assert (await kubelet.admit(pod)).phase is Phase.FAILED
        assert admissions(kubelet) == [("allocate", "0")]
        await kubelet.admit(Pod.of("next", {GPU: 2}))
        assert admissions(kubelet)[-1] == ("allocate", "01")


async def test_x5_devices_belong_to_a_pod_until_it_has_finished(kubelet):
    pod = Pod("p", (container("a", 2), container("b", 2)))
    await kubelet.run(pod)
    await kubelet.exit_container(pod, "a")
    assert (await kubelet.admit(Pod.of("early", {GPU: 1}))).phase is Phase.FAILED
    await kubelet.finish(pod)
    assert pod.phase is Phase.SUCCEEDED
    await kubelet.admit(Pod.of("next", {GPU: 1}))
    assert admissions(kubelet)[-2:] == [("prefer", "0123", "", 1), ("allocate", "0")]


async def test_x6_a_slow_allocate_delays_all_admissions_and_deletions(kubelet, plugin):
    running, slow, plain = Pod.of("running", {GPU: 1}), Pod.of("slow", {GPU: 1}), Pod.of("plain", {})
    await kubelet.run(running)
    plugin.hold["Allocate"] = asyncio.Event()
    admitting = asyncio.create_task(kubelet.admit(slow))
    await during(kubelet, "Allocate")
    others = [asyncio.create_task(kubelet.admit(plain)), asyncio.create_task(kubelet.delete(running))]
    _, pending = await asyncio.wait([admitting, *others], timeout=0.1)
    assert len(pending) == 3
    assert (await kubelet.restart_container(running, "main")).starts == 2  # pod workers go on
    plugin.hold["Allocate"].set()
    await asyncio.wait_for(asyncio.gather(admitting, *others), WITHIN)
    assert running.uid not in kubelet.pods


async def test_r4_a_force_deleted_pods_device_is_free_too_early(node):
    async with node.ready(offers={"ids": "0"}) as (kubelet, _):
        pod = Pod.of("p", {GPU: 1})
        await kubelet.run(pod)
        await kubelet.force_delete(pod)
        assert pod.statuses["main"].state.value == "running"
        assert (await kubelet.run(Pod.of("next", {GPU: 1}))).phase is Phase.RUNNING
        assert kubelet.starts[0].devices == kubelet.starts[1].devices == {GPU: ("0",)}


async def test_r6_a_device_removed_during_its_allocate_panics_the_kubelet(kubelet, plugin):
    plugin.hold["Allocate"] = asyncio.Event()
    admitting = asyncio.create_task(kubelet.admit(Pod.of("p", {GPU: 1})))
    await during(kubelet, "Allocate")
    plugin.show(g0=None)
    await kubelet.until(lambda: kubelet.capacity == {GPU: 3})
    plugin.hold["Allocate"].set()
    with pytest.raises(KubeletPanic, match="0 left the list"):
        await asyncio.wait_for(admitting, WITHIN)
    assert len(kubelet.panics) == 1
    assert kubelet.capacity == {}
    with pytest.raises(NotRunning):
        await kubelet.admit(Pod.of("next", {GPU: 1}))
    await kubelet.start()


async def test_r8_listing_pods_during_a_slow_allocate_doubles_a_device(kubelet, plugin):
    gone, slow, second = Pod.of("gone", {GPU: 1}), Pod.of("slow", {GPU: 1}), Pod.of("second", {GPU: 1})
    await kubelet.run(gone)
    plugin.hold["Allocate"] = asyncio.Event()
    plugin.prefer = ["2"]
    admitting = asyncio.create_task(kubelet.admit(slow))
    await during(kubelet, "Allocate")
    await kubelet.finish(gone)  # somebody to clean up
    kubelet.list_pod_resources()
    plugin.hold["Allocate"].set()
    await asyncio.wait_for(admitting, WITHIN)
    await kubelet.admit(second)
    assert kubelet.held(slow)["main"] == kubelet.held(second)["main"] == {GPU: ("2",)}


async def test_x25_pod_resources_shows_apps_and_sidecars_but_no_inits(kubelet, plugin):
    plugin.hold["Allocate"] = asyncio.Event()
    sidecar = Container("s", {GPU: 1}, ContainerKind.SIDECAR)
    pod = Pod("p", (container("i", 1, ContainerKind.INIT), sidecar, container("a", 2)))
    admitting = asyncio.create_task(kubelet.admit(pod))
    await during(kubelet, "Allocate")
    reported = kubelet.list_pod_resources().pod_resources[0]
    assert [(one.name, len(one.devices)) for one in reported.containers] == [("s", 0), ("a", 0)]
    plugin.hold["Allocate"].set()
    await asyncio.wait_for(admitting, WITHIN)
    reported = kubelet.list_pod_resources().pod_resources[0]
    shown = {one.name: [list(device.device_ids) for device in one.devices] for one in reported.containers}
    assert shown == {"s": [["0"]], "a": [["1"], ["2"]]}
