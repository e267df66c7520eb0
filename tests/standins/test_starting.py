"""PreStartContainer and what follows it. Ids: docs/kubelet-stand-in.md."""

import asyncio

from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Container, ContainerKind, ContainerState, Phase, Pod
from demo.standins.runtime import CannotCreate, Runtime
from demo.standins.timing import Timing
from tests.patience import WITHIN
from tests.standins.conftest import during


class Containers(Runtime):
    """A runtime that remembers, and fails when told."""

    def __init__(self) -> None:
        self.log: list[tuple[object, ...]] = []
        self.refuse = ""
        self.envs: list[dict[str, str]] = []

    async def start(self, _pod, container, devices, response):
        self.log.append(("start", container.name, dict(devices)))
        self.envs.append(dict(response.envs))
        if self.refuse:
            raise CannotCreate(self.refuse)

    async def stop(self, _pod, container):
        self.log.append(("stop", container.name))


def prestarts(kubelet):
    return ["".join(call.ids) for call in kubelet.calls if call.method == "PreStartContainer"]


async def test_r3_x2_prestart_comes_once_before_each_start(node):
    runtime = Containers()
    async with node.ready(runtime=runtime) as (kubelet, plugin):
        inits = Container("i", {GPU: 1}, ContainerKind.INIT), Container("s", {GPU: 1}, ContainerKind.SIDECAR)
        pod = Pod("p", (Container("b", {GPU: 2}), *inits))
        await kubelet.run(pod)
        assert prestarts(kubelet) == ["0", "0", "12"]
        assert [line[1] for line in runtime.log] == ["i", "s", "b"]
        assert runtime.envs == [{"ANSWER": "yes"}] * 3
        assert runtime.log[-1] == ("start", "b", {GPU: ("1", "2")})
        assert [start.prestart for start in kubelet.starts] == [True] * 3
        assert {call.deadline for call in kubelet.calls if call.method == "PreStartContainer"} == {30.0}
        assert 29 < plugin.left["PreStartContainer"] < 31
        assert pod.statuses["i"].state is ContainerState.TERMINATED
        assert pod.statuses["s"].state is ContainerState.RUNNING


async def test_x9_after_a_prestart_timeout_the_next_container_is_tried(node):
    async with node.ready(timing=Timing(prestart=0.2)) as (kubelet, plugin):
        plugin.hold["PreStartContainer"] = asyncio.Event()
        pod = Pod("p", (Container("a", {GPU: 1}), Container("b", {GPU: 1})))
        await kubelet.run(pod)
        assert prestarts(kubelet) == ["0", "1"]
        for status in pod.statuses.values():
            assert status.state is ContainerState.WAITING
            assert status.reason == "CreateContainerConfigError"
            assert status.message == (
                "device plugin PreStartContainer rpc failed with err:"
                " rpc error: code = DeadlineExceeded desc = context deadline exceeded"
            )
        assert pod.phase.value == "Pending"
        plugin.hold["PreStartContainer"].set()
        assert await kubelet.sync(pod)
        assert pod.phase is Phase.RUNNING


async def test_x10_an_error_from_prestart_is_retried_for_ever(kubelet, plugin):
    plugin.fail["PreStartContainer"] = "not yet clean"
    pod = Pod.of("p", {GPU: 1})
    await kubelet.run(pod)
    assert pod.statuses["main"].message.endswith("code = Internal desc = not yet clean")
    assert kubelet.held(pod) == {"main": {GPU: ("0",)}}
    pauses = []

    async def pause(seconds) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            plugin.fail.clear()

    await kubelet.keep_trying(pod, pause)
    assert pauses == [0.5, 12.0, 12.0]
    assert pod.phase is Phase.RUNNING
    assert pod.statuses["main"].message == ""


async def test_x23_a_pod_deleted_during_prestart_starts_and_stops(node):
    runtime = Containers()
    async with node.ready(runtime=runtime) as (kubelet, plugin):
        plugin.hold["PreStartContainer"] = asyncio.Event()
        pod = Pod.of("p", {GPU: 1})
        running = asyncio.create_task(kubelet.run(pod))
        await during(kubelet, "PreStartContainer")
        deleting = asyncio.create_task(kubelet.delete(pod))
        await asyncio.wait([deleting], timeout=0.1)
        assert plugin.cancelled == []
        plugin.hold["PreStartContainer"].set()
        await asyncio.wait_for(asyncio.gather(running, deleting), WITHIN)
        assert [line[0] for line in runtime.log] == ["start", "stop"]
        assert pod.statuses["main"].state is ContainerState.TERMINATED


async def test_x24_prestart_comes_again_after_a_failed_create(node):
    runtime = Containers()
    runtime.refuse = "unresolvable CDI devices"
    async with node.ready(runtime=runtime) as (kubelet, _):
        pod = Pod.of("p", {GPU: 1})
        await kubelet.run(pod)
        assert pod.statuses["main"].reason == "CreateContainerError"
        assert pod.statuses["main"].message == "unresolvable CDI devices"
        assert kubelet.starts == []
        runtime.refuse = ""
        assert await kubelet.sync(pod)
        assert prestarts(kubelet) == ["0", "0"]
        assert pod.statuses["main"].starts == 1


async def test_x26_prestart_is_never_called_on_a_plugin_without_it(node):
    async with node.ready(offers={"prestart": False}) as (kubelet, plugin):
        pod = Pod.of("p", {GPU: 1})
        await kubelet.run(pod)
        await plugin.stop()
        await kubelet.until(lambda: kubelet.allocatable == {GPU: 0})
        assert (await kubelet.restart_container(pod, "main")).state is ContainerState.RUNNING
        assert prestarts(kubelet) == []
        assert [start.prestart for start in kubelet.starts] == [False, False]


async def test_r7_prestart_is_called_for_an_inactive_pod_until_cleanup(kubelet):
    pod = Pod.of("p", {GPU: 1})
    await kubelet.admit(pod)
    await kubelet.force_delete(pod)
    assert (await kubelet.start_container(pod, "main")).state is ContainerState.RUNNING
    await kubelet.admit(Pod.of("next", {GPU: 1}))  # cleans up
    status = await kubelet.restart_container(pod, "main")
    assert "no devices found allocated in local cache" in status.message


async def test_a_pod_has_a_directory_from_start_to_deletion(directory, tmp_path):
    def named() -> list[str]:
        return [entry.name for entry in tmp_path.iterdir()]

    async with Kubelet(directory, logs=tmp_path) as kubelet:
        pod = Pod.of("p", {})
        await kubelet.admit(pod)
        assert named() == []
        await kubelet.sync(pod)
        await kubelet.restart_container(pod, "main")
        await kubelet.finish(pod)
        assert named() == [f"default_p_{pod.uid}"]
        await kubelet.delete(pod)
        assert named() == []
