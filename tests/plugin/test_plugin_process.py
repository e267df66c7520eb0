"""The real plugin as a process, between a kubelet and a scrub service."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from demo.standins.kubelet import Kubelet
from demo.standins.pods import Phase, Pod
from demo.standins.vendor_plugin import VendorPlugin
from plugin.registration import sockets
from tests.patience import WITHIN
from tests.plugin.kubelet_server import Kubelet as NewerKubelet
from tests.plugin.live_plugin import FOLLOWED, NO_DIRECTORY, NO_KUBELET, NO_SERVICE, STANDING_BY, allocate
from tests.plugin.scraping import get, scrape
from tests.plugin.scrub_server import gpu, hang

GPU = "nvidia.com/gpu"
MEMORY = 28 * 1024  # KiB
HEAVY = {
    "pynvml", "cupy", "numpy", "sqlite3", "pydantic", "ruamel", "lightkube", "rich", "pygments", "scrubber.core",
    "plugin.cluster.nvsentinel",
}  # fmt: skip


@pytest.fixture
async def newer(short_tmp):
    """A kubelet that knows plugins by their sockets, as those from 1.37 on."""
    newer = NewerKubelet(short_tmp)
    await newer.start()
    yield newer
    await newer.stop()


async def test_a_hangup_during_the_start_is_answered_after_it(service, plugin, short_tmp):  # noqa: ARG001 - it answers
    """The start waits for its configuration when the signal comes."""
    config = short_tmp / "config.yaml"
    os.mkfifo(config)
    started = await plugin("--config", config)
    with await asyncio.to_thread(config.open, "w") as file:  # waits until the plugin reads
        started.process.send_signal(signal.SIGHUP)
        file.write("resource-prefix: nvidia.com")
    await started.hear("SIGHUP is ignored: the plugin has nothing to reload")


async def test_a_resource_that_appears_later_is_registered_then(scrub_server, kubelet, plugin):
    await plugin("--mig-strategy", "mixed", "--resource-prefix", "a.io")
    await kubelet.registered("a.io/gpu")
    scrub_server.say(gpu(0), gpu(1), gpu(2, mig=True, resource="nvidia.com/mig-1g.10gb"))
    await kubelet.registered("a.io/mig-1g.10gb")
    assert kubelet.capacity == {"a.io/gpu": 2, "a.io/mig-1g.10gb": 1}


WAITS = {"waits": True}  # the fence holds the containers


async def test_where_containers_wait_a_plugin_registers_without_the_service(scrub_server, kubelet, plugin, short_tmp):
    await scrub_server.close()
    scrub_server.leave(gpu(0, **WAITS), gpu(1, **WAITS, healthy=False, quarantined=True))
    it = await plugin()
    await kubelet.until(lambda: kubelet.devices(GPU) == {"GPU-0000": "Healthy", "GPU-0001": "Unhealthy"})
    answer = await allocate(short_tmp, "GPU-0000")
    assert [it.name for it in answer.container_responses[0].cdi_devices] == ["nvidia.com/gpu=GPU-0000"]
    await it.hear("the containers wait for the service")
    scrub_server.say(gpu(0, **WAITS), gpu(1, **WAITS))
    await scrub_server.open()
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 2})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("missing", ["nothing", "kubelet", "service"])
async def test_a_signal_ends_it_cleanly_and_at_once(scrub_server, kubelet, plugin, short_tmp, number, missing):
    if missing == "service":
        await scrub_server.close()
    if missing == "kubelet":
        await kubelet.stop()
        (short_tmp / "kubelet.sock").unlink()
    it = await plugin()
    if missing == "nothing":
        await it.hear("registered")
    else:
        await it.hear(NO_KUBELET if missing == "kubelet" else NO_SERVICE)
    it.process.send_signal(number)
    assert await it.ended() == 0
    begin, end = it.lines("stopping")[0], it.log_lines[-1]  # what was under way may be told in between
    assert end["event"] == "stopped"
    took = datetime.fromisoformat(end["timestamp"]) - datetime.fromisoformat(begin["timestamp"])
    assert took.total_seconds() < sockets.POLL_EVERY - 1.0  # what waits for the clock here waits at least for that
    assert it.said == ""
    assert not list((short_tmp / "autoclave").glob("*.sock"))


async def test_a_stop_answers_the_calls_that_have_begun(scrub_server, kubelet, plugin):
    answer = asyncio.Event()

    async def later(_devices) -> None:
        await answer.wait()

    scrub_server.answer = later
    it = await plugin()
    await kubelet.registered(GPU)
    admission = asyncio.create_task(kubelet.admit(pod := Pod.of("one", {GPU: 1})))
    await scrub_server.until(lambda server: server.asked)
    it.process.send_signal(signal.SIGTERM)
    assert (await it.hear("stopping"))["calls"] == 1
    await asyncio.sleep(1.0)  # longer than gRPC lets a call run when its server stops
    answer.set()
    await admission
    assert pod.phase is not Phase.FAILED
    assert await it.ended() == 0


async def test_a_stop_does_not_wait_for_ever_for_a_call(scrub_server, kubelet, plugin):
    scrub_server.answer = hang
    it = await plugin()
    await kubelet.registered(GPU)
    admission = asyncio.create_task(kubelet.admit(pod := Pod.of("one", {GPU: 1})))
    await scrub_server.until(lambda server: server.asked)
    assert await it.stop() == 0
    await admission
    assert pod.phase is Phase.FAILED


@pytest.mark.usefixtures("scrub_server")
async def test_a_plugin_beside_another_one_is_not_ready(newer, plugin, short_tmp):
    """This kubelet keeps both, as those from 1.37 on: it tells neither."""
    rival = await VendorPlugin(short_tmp, short_tmp, ["GPU-0000"]).begin()
    await newer.knows(1)
    it = await plugin("--metrics-address", "127.0.0.1:0")
    await newer.knows(2)
    line = await it.hear("another plugin serves in the kubelet's directory: what it hands out is not proven")
    assert (line["level"], line["socket"]) == ("error", str(rival.path))
    code, text = await get((await it.hear("showing metrics"))["address"], "/readyz")
    why = f"another plugin serves at {rival.path}: remove it; what it hands out is not proven"
    assert (code, text.splitlines()[0]) == (503, f"not ready: {why}")  # ours may not know yet that it is registered
    await rival.stop()


@pytest.mark.usefixtures("scrub_server")
async def test_a_plugin_on_standby_registers_when_the_other_one_stops(kubelet, plugin):
    first = await plugin("--standby", "--metrics-address", "127.0.0.1:0")
    await kubelet.registered(GPU)
    second = await plugin("--standby", "--metrics-address", "127.0.0.1:0")
    await second.hear(STANDING_BY)
    await second.hear("devices known")
    # Only when it is ready does a rolling update stop the other plugin.
    address = (await second.hear("showing metrics"))["address"]
    assert await get(address, "/readyz") == (200, "ready\n")
    shown = (await get(address, "/metrics"))[1]
    assert "autoclave_scrubber_connected 1" in shown
    assert not re.findall(r"^autoclave_(plugin_ready|kubelet_connected|listed_devices)", shown, re.MULTILINE)
    assert await first.stop() == 0
    # This kubelet is one before 1.37: the end of the first plugin ends the stream of the second one, which comes again.
    await kubelet.until(lambda: len(kubelet.registrations) == 3)
    await kubelet.registered(GPU)
    await kubelet.admit(pod := Pod.of("one", {GPU: 1}))
    assert pod.phase is not Phase.FAILED


@pytest.mark.usefixtures("scrub_server")
async def test_in_an_update_the_kubelet_always_has_a_plugin(newer, plugin):
    """This kubelet knows plugins by their sockets, as those from 1.37 on."""
    last = await plugin("--standby")
    for count in (2, 3):
        await newer.knows(count - 1)
        following = await plugin("--standby")
        await following.hear(STANDING_BY)
        await last.hear(FOLLOWED)
        assert await last.stop() == 0
        last = following
        assert len(newer.registers) == count
    assert newer.gaps == 0
    assert await last.stop() == 0
    await newer.until(lambda: newer.gaps == 1)


def await_locks() -> set[str]:
    """The processes that the kernel wakes when a lock is free."""
    return {line.split()[5] for line in Path("/proc/locks").read_text().splitlines() if "-> FLOCK" in line}


@pytest.mark.usefixtures("scrub_server")
async def test_an_update_of_pods_of_two_leaves_no_gap(newer, plugin):
    """Both containers of the old pod stop at the same time, while those of the new pod stand by."""
    old = [await plugin("--standby")]
    await old[0].hear(FOLLOWED)
    old.append(await plugin("--standby"))
    await old[1].hear(STANDING_BY)
    new = [await plugin("--standby") for _ in range(2)]
    for each in new:
        await each.hear(STANDING_BY)
    async with asyncio.timeout(WITHIN):
        while not {str(each.process.pid) for each in new} <= await_locks():  # noqa: ASYNC110 - a list in /proc has no event
            await asyncio.sleep(0.01)
    await asyncio.gather(*(each.stop() for each in old))
    await newer.until(lambda: newer.listening)
    assert newer.gaps == 0


@pytest.mark.usefixtures("scrub_server")
async def test_after_each_kill_the_standby_registers(newer, plugin):
    """Whichever was killed is started again as the standby."""
    present = await plugin("--standby")
    await newer.knows()
    standby = await plugin("--standby")
    for count in (2, 3):
        await standby.hear(STANDING_BY)
        present.process.kill()
        await newer.knows(count)
        present, standby = standby, await plugin("--standby")


@pytest.mark.usefixtures("scrub_server")
async def test_the_standby_replaces_a_plugin_that_hangs(kubelet, plugin):
    """A call of the kubelet that waits for it must end, too: meanwhile no pod of the node starts."""
    present = await plugin("--standby")
    await kubelet.registered(GPU)
    standby = await plugin("--standby")
    await standby.hear(STANDING_BY)
    present.process.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(WITHIN):
        await kubelet.admit(pod := Pod.of("one", {GPU: 1}))
    assert pod.phase is Phase.FAILED
    killed = await standby.hear("killed another plugin of this node: it did not answer")
    assert killed["pid"] == present.process.pid
    async with asyncio.timeout(WITHIN):
        while (await kubelet.admit(Pod.of("two", {GPU: 1}))).phase is Phase.FAILED:
            await kubelet.registered(GPU)


@pytest.mark.usefixtures("scrub_server")
async def test_a_second_instance_is_refused_and_the_first_goes_on(kubelet, plugin):
    first = await plugin()
    await kubelet.registered(GPU)
    second = await plugin()
    assert await second.ended() == 2
    assert second.said.startswith("autoclave: cannot start: another autoclave plugin runs in ")
    assert second.said.count("\n") == 1
    assert first.process.returncode is None
    assert kubelet.allocatable == {GPU: 2}


async def test_wrong_usage_is_one_line_and_exit_code_2(plugin):
    it = await plugin("--kubelet-dir", "/dev/null")
    assert await it.ended() == 2
    assert it.said.startswith("autoclave: ")
    assert " /dev/null: " in it.said
    assert it.said.count("\n") == 1
    assert it.log_lines == []


async def test_a_socket_name_that_is_too_long_exits_2(scrub_server, short_tmp, plugin):
    deep = short_tmp / ("d" * (107 - len(f"{short_tmp}//autoclave/nvidia.com_gpu-Zk_9.sock")))
    deep.mkdir()
    scrub_server.say(gpu(0), gpu(1, mig=True, resource="nvidia.com/mig-1g.10gb"))
    it = await plugin("--kubelet-dir", deep, "--mig-strategy", "mixed")
    assert await it.ended() == 2
    assert it.said.startswith(f"autoclave: cannot use socket path {deep}")
    assert it.said.count("\n") == 1


@pytest.mark.usefixtures("scrub_server")
@pytest.mark.parametrize("flags", [[], ["--standby"]], ids=["alone", "standby"])
async def test_the_plugin_waits_for_the_first_kubelet_of_a_node(short_tmp, plugin, flags):
    """A unit of systemd may start before a kubelet has ever made its directory."""
    directory = short_tmp / "kubelet/device-plugins"
    waiting = await plugin("--kubelet-dir", directory, *flags)
    assert (await waiting.hear(NO_DIRECTORY))["directory"] == str(directory)
    directory.mkdir(parents=True)
    kubelet = Kubelet(directory)
    await kubelet.start()
    await kubelet.registered(GPU)
    await kubelet.stop()


async def test_in_front_the_plugin_waits_for_the_first_kubelet(short_tmp, plugin):
    directory = short_tmp / "kubelet"
    waiting = await plugin("--kubelet-dir", directory, "--vendor-dir", directory / "vendor")
    await waiting.hear(NO_DIRECTORY)
    directory.mkdir()
    await waiting.hear(NO_SERVICE)
    assert (directory / "vendor").is_dir()


async def test_a_plugin_waiting_for_the_first_kubelet_can_be_stopped(short_tmp, plugin):
    waiting = await plugin("--kubelet-dir", short_tmp / "absent")
    await waiting.hear(NO_DIRECTORY)
    assert await waiting.stop() == 0
    assert not (short_tmp / "absent").exists()


@pytest.mark.usefixtures("scrub_server")
async def test_flags_win_over_the_environment_and_that_over_the_file(short_tmp, kubelet, plugin):
    file = short_tmp / "plugin.yaml"
    file.write_text("resource-prefix: file.io\nstrategy: [envvar, volume-mounts]\npass_device_specs: true\n")
    by_file = await plugin(AUTOCLAVE_CONFIG=str(file))
    await kubelet.registered("file.io/gpu")
    await by_file.stop()
    by_environment = await plugin(AUTOCLAVE_CONFIG=str(file), AUTOCLAVE_RESOURCE_PREFIX="env.io")
    await kubelet.registered("env.io/gpu")
    await by_environment.stop()
    await plugin("--resource-prefix", "flag.io", "--config", file, AUTOCLAVE_RESOURCE_PREFIX="env.io")
    await kubelet.registered("flag.io/gpu")


@pytest.mark.usefixtures("executed")
async def test_the_plugin_uses_little_memory(scrub_server, kubelet, plugin):
    scrub_server.say(*(gpu(index) for index in range(8)))
    it = await plugin("--metrics-address", "127.0.0.1:0")
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 8})
    await scrape((await it.hear("showing metrics"))["address"])
    # Its own pages. How many pages of libraries are mapped depends on how the kernel has read these files.
    assert int(it.status()["RssAnon"].split()[0]) <= MEMORY


def test_the_plugin_loads_no_driver_library():
    load = "import sys; from autoclave.cli import cli; cli.get_command(None, 'plugin')"
    script = [sys.executable, "-c", f"{load}; print(*sys.modules)"]
    loaded = subprocess.run(script, capture_output=True, text=True, check=True).stdout.split()
    assert "plugin" in loaded
    assert not HEAVY & set(loaded)
