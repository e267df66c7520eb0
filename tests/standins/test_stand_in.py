"""The stand-in as a tool: it does not lie, does not hang, and does not hide its own faults."""

import asyncio
import subprocess
import sys

import pytest

from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.journal import StandInFault
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Container, ContainerKind, Pod
from demo.standins.runtime import Runtime
from tests.patience import WITHIN


class BrokenError(Exception):
    pass


async def test_a_fault_in_the_background_fails_the_next_call(directory, node, monkeypatch):
    def broken(*_) -> None:
        raise BrokenError("planted")

    kubelet = Kubelet(directory)
    await kubelet.start()
    assert kubelet._life is not None
    monkeypatch.setattr(kubelet._life.inventory, "replace", broken)
    await node.plugin().begin()
    for ask in (lambda: kubelet.registered(GPU), lambda: kubelet.admit(Pod.of("p", {})), kubelet.stop):
        with pytest.raises(StandInFault, match="planted") as caught:
            await ask()
        assert isinstance(caught.value.__cause__, BrokenError)


async def test_a_fault_of_the_runtime_fails_its_own_call(directory):
    class Broken(Runtime):
        async def start(self, *_) -> None:
            raise BrokenError("planted")

    kubelet = Kubelet(directory, Broken())
    await kubelet.start()
    with pytest.raises(BrokenError):
        await kubelet.run(Pod.of("p", {}))
    await kubelet.stop()


async def test_until_gives_up_in_time_and_wakes_at_once(node):
    async with node.kubelet() as kubelet:
        with pytest.raises(TimeoutError):
            await kubelet.until(lambda: False, within=0.05)
        waiting = asyncio.create_task(kubelet.registered(GPU))
        await node.plugin().begin()
        await asyncio.wait_for(waiting, WITHIN)


async def test_a_cancelled_admission_leaves_a_working_kubelet(node):
    async with node.ready() as (kubelet, plugin):
        plugin.hold["Allocate"] = asyncio.Event()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(kubelet.admit(Pod.of("p", {GPU: 1})), 0.1)
        await kubelet.until(lambda: kubelet.calls[-1].outcome == "CANCELLED")
        plugin.hold.clear()
        assert (await kubelet.run(Pod.of("next", {GPU: 3}))).phase.value == "Running"


def test_a_pod_has_its_apps_last_and_distinct_names():
    pod = Pod(
        "p",
        (
            Container("a"),
            Container("i", kind=ContainerKind.INIT),
            Container("b"),
            Container("s", kind=ContainerKind.SIDECAR),
        ),
    )
    assert [one.name for one in pod.containers] == ["i", "s", "a", "b"]
    with pytest.raises(ValueError, match="two containers have the same name"):
        Pod("p", (Container("a"), Container("a")))
    with pytest.raises(LookupError, match="pod p has no container x"):
        pod.container("x")


def test_it_needs_nothing_of_autoclave_but_the_protocol():
    program = (
        "import sys, demo.standins.kubelet, demo.standins.__main__\n"
        "ours = [n for n in sys.modules if n.split('.')[0] in ('scrubber', 'policies', 'dashboards', 'plugin')]\n"
        "print(*[n for n in ours if not n.startswith(('demo.standins', 'plugin.kubelet_api'))])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=WITHIN)
    assert result.stdout.split() == ["plugin"]


async def test_a_directory_too_long_for_sockets_is_refused(tmp_path):
    with pytest.raises(ValueError, match="longer than 107 bytes; give a shorter directory"):
        await Kubelet(tmp_path / ("x" * 100)).start()
