"""The real plugin as a process between a kubelet, a scrub service and an API server that fails."""

import asyncio
import socket
import sys
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from demo.standins.kubelet import Kubelet
from demo.standins.pods import Phase, Pod
from scrub_api import admin_client
from tests.live import Service
from tests.patience import WITHIN
from tests.plugin.cluster.api_server import NODE, silence
from tests.plugin.live_plugin import Plugin
from tests.plugin.scrub_server import gpu

GPU = "nvidia.com/gpu"
ON = ("--cluster-reports", "on", "--node-name", NODE)
ROOTS = Path(grpc.__file__).parent / "_cython" / "_credentials" / "roots.pem"


def quick_plugin(it, also="", stop_within=0.2):
    """With shorter pauses: for tests that would wait for them."""
    pace = f"lambda **_: Pace(spacing=0.01, stop_within={stop_within})"
    script = (
        "import sys; from plugin.cluster import reporter; from plugin.cluster.retry_loop import Pace;"
        f"reporter.Pace = {pace}; {also} from autoclave.cli import main; sys.exit(main())"
    )
    it.command[:3] = [sys.executable, "-c", script]
    return it


@pytest.fixture
def node(short_tmp):
    """Where the kubelet of a test is: it clears away sockets in its folder that are not its own."""
    (short_tmp / "node").mkdir()
    return short_tmp / "node"


@pytest.fixture
async def kubelet(node):
    """A kubelet that runs."""
    kubelet = Kubelet(node)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
async def plugin(short_tmp, node, api):
    """Start plugins that report to the API server; all are ended with the test."""
    started: list[Plugin] = []

    async def plugin(*flags: object, run_dir: Path = short_tmp, quick: bool = False, **env: str) -> Plugin:
        env = {"KUBECONFIG": str(api.kubeconfig), "NO_PROXY": "*"} | env
        it = Plugin(node, "--run-dir", run_dir, *flags, **env)
        started.append(await (quick_plugin(it) if quick else it).start())
        return started[-1]

    yield plugin
    for each in started:
        await each.clear_away()


async def works(kubelet, door):
    """A device goes out and comes back in the kubelet's eyes, and a pod gets one."""
    for healthy in (False, True):
        door.say(gpu(0), gpu(1, healthy=healthy, reason="" if healthy else "xid", sick=not healthy))
        await kubelet.until(lambda healthy=healthy: kubelet.allocatable == {GPU: 2 if healthy else 1})
    pod = Pod.of("train", {GPU: 1})
    await kubelet.run(pod)
    assert (pod.phase, pod.message) == (Phase.RUNNING, "")
    await kubelet.delete(pod)


@pytest.mark.parametrize("way", ["down", "hangs"])
async def test_no_answer_of_the_api_server_changes_the_node(api, door, kubelet, plugin, way):
    if way == "down":
        await api.close()
    else:
        api.fault = silence
    door.say(gpu(0), gpu(1))
    it = await plugin(*ON, quick=way == "hangs")
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 2})
    if way == "down":
        await it.hear("cannot send")
    else:
        await api.until(lambda: api.requests)
    await works(kubelet, door)
    it.process.terminate()
    assert await it.ended() == 0
    assert it.said == ""


async def test_the_kubelet_is_served_until_the_stop_is_reported(api, door, kubelet, node, short_tmp):
    """While no plugin is registered, the kubelet rejects pods. The next plugin registers after the end of this one."""
    door.say(gpu(0), gpu(1))
    it = Plugin(node, "--run-dir", short_tmp, *ON, KUBECONFIG=str(api.kubeconfig), NO_PROXY="*")
    await quick_plugin(it, stop_within=WITHIN).start()
    try:
        await kubelet.until(lambda: kubelet.allocatable == {GPU: 2})
        await api.until(lambda: api.says("True"))
        api.fault = silence
        answered = len(api.requests)
        it.process.terminate()
        await api.until(lambda: len(api.requests) > answered)
        pod = Pod.of("train", {GPU: 1})
        await kubelet.run(pod)
        assert (pod.phase, pod.message) == (Phase.RUNNING, "")
        await api.close()
        assert await it.ended() == 0
    finally:
        await it.clear_away()


async def test_a_quarantine_and_its_end_are_reported_to_the_cluster(api, plugin, node):
    service = await asyncio.to_thread(Service, node, 2)
    try:
        it = await plugin(*ON, run_dir=service.run_dir, quick=True)
        await api.until(lambda: api.says("True"))
        async with admin_client.AdminClient(service.run_dir / "admin.sock") as admin:
            for gpu in ("0", "1"):
                await admin.quarantine(gpu, "a drill", "a test")
            await api.until(lambda: api.says("False", "AllDevicesOut"))
            assert "GPU 0 (quarantined: operator)" in api.condition()["message"]
            async for _ in admin.reinstate(["0"], "done", "a test"):
                pass
        await api.until(lambda: api.says("False", "SomeDevicesOut"))
        await api.until(lambda: ("DeviceRecovered", "GPU 0") in api.counts())
        assert await it.stop() == 0  # a service waits for a while for those who still listen
    finally:
        await asyncio.to_thread(service.stop)


async def test_a_hanging_handshake_delays_neither_kubelet_nor_stop(door, kubelet, node, short_tmp):
    """The credentials of a pod, and a server that accepts and never says hello."""
    door.say(gpu(0), gpu(1))
    account = short_tmp / "account"
    account.mkdir()
    (account / "token").write_text("secret")
    (account / "namespace").write_text("kube-system")
    (account / "ca.crt").write_bytes(ROOTS.read_bytes())
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(WITHIN)
        port = server.getsockname()[1]
        it = Plugin(
            node, "--run-dir", short_tmp, NODE_NAME=NODE, KUBERNETES_SERVICE_HOST="127.0.0.1",
            KUBERNETES_SERVICE_PORT=str(port), NO_PROXY="*",
        )  # fmt: skip
        mounted = f"partial(report_choice.ReportChoice, service_account=Path({str(account)!r}))"
        imports = "from functools import partial; from pathlib import Path; from plugin.cluster import report_choice"
        quick_plugin(it, f"{imports}; report_choice.ReportChoice = {mounted};")
        await it.start()
        try:
            connected, _ = await asyncio.get_running_loop().run_in_executor(None, server.accept)
            with closing(connected):
                await kubelet.until(lambda: kubelet.allocatable == {GPU: 2})
                await works(kubelet, door)
                it.process.terminate()
                assert await it.ended() == 0
        finally:
            await it.clear_away()


async def test_unusable_credentials_exit_2_with_one_line(plugin):
    it = await plugin(*ON, KUBECONFIG="/nonexistent")
    assert await it.ended() == 2
    assert it.said.startswith("autoclave: cannot report to the cluster: cannot use the credentials: ")
    assert it.said.count("\n") == 1
