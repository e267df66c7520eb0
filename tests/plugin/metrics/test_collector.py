"""The plugin's figures and probes: the real process, between a real service or one that the test speaks for."""

import asyncio
from dataclasses import dataclass

import grpc.aio
import pytest

from demo.standins.kubelet import Kubelet
from demo.standins.pods import Phase, Pod
from ground.errors import Reason, Refused
from plugin.metrics import plugin_metrics
from scrub_api import admin_client
from scrubber import __version__
from tests.fetching import lint
from tests.plugin import kubelet_server
from tests.plugin.live_plugin import NO_KUBELET, NO_SERVICE, Plugin, allocate
from tests.plugin.scraping import get, scrape
from tests.plugin.scrub_server import gpu, no, yes

GPU = "nvidia.com/gpu"
SILENT = "every device is unhealthy: the scrub service does not answer"
IN_USE = Refused(Reason.IN_USE, "cannot hand out GPU-0000: a process is still on it")


@dataclass
class Shown:
    """A plugin that shows its metrics."""

    plugin: Plugin
    address: str

    async def scrape(self):
        return await scrape(self.address)

    async def ready(self):
        return await get(self.address, "/readyz")


@pytest.fixture
def shown(plugin):
    """Start plugins that show their figures."""

    async def shown(*flags: object) -> Shown:
        it = await plugin("--metrics-address", "127.0.0.1:0", *flags)
        return Shown(it, (await it.hear("showing metrics"))["address"])

    return shown


def registered(scraped, outcome):
    return scraped.of(plugin_metrics.REGISTRATIONS, resource=GPU, outcome=outcome)


def hooks(scraped, hook, outcome):
    return scraped.of(plugin_metrics.HOOK_TIME, "_count", hook=hook, outcome=outcome)


def listed(scraped):
    return tuple(scraped.of(plugin_metrics.LISTED, resource=GPU, health=health) for health in ("healthy", "unhealthy"))


async def test_metrics_of_a_day_lead_to_their_receipts(service, kubelet, shown, short_tmp):
    it = await shown()
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 2})
    await it.plugin.hear("registered")
    scraped = await it.scrape()
    assert await it.ready() == (200, "ready\n")
    assert (scraped.of(plugin_metrics.READY), scraped.of(plugin_metrics.SCRUBBER)) == (1, 1)
    assert (registered(scraped, "registered"), listed(scraped)) == (1, (2, 0))
    assert (scraped.of(plugin_metrics.CONNECTED, resource=GPU), scraped.of(plugin_metrics.LISTS, resource=GPU)) == (
        1,
        1,
    )
    assert scraped.of(plugin_metrics.BUILD, version=__version__) == 1
    assert scraped.of(plugin_metrics.HOOK_REFUSALS, hook="Allocate", reason="quarantined") == 0

    used, other = [await asyncio.to_thread(service.settled, index, "clean") for index in range(2)]
    pod = Pod.of("train", {GPU: 1})
    await kubelet.run(pod)
    assert pod.phase is Phase.RUNNING
    scraped = await it.scrape()
    assert [hooks(scraped, hook, "ok") for hook in ("Allocate", "PreStartContainer", "GetPreferredAllocation")] == [
        1,
        1,
        1,
    ]
    assert scraped.receipts(plugin_metrics.HOOK_TIME) == {used.receipt.id}

    async with admin_client.AdminClient(service.run_dir / "admin.sock") as admin:
        await admin.quarantine(other.device, "a drill", "a test")
    with pytest.raises(grpc.aio.AioRpcError):
        await allocate(short_tmp, other.device)
    scraped = await it.scrape()
    assert scraped.of(plugin_metrics.HOOK_REFUSALS, hook="Allocate", reason="quarantined") == 1
    assert (hooks(scraped, "Allocate", "refused"), listed(scraped)) == (1, (1, 1))
    assert scraped.unknown() == []
    lint((await get(it.address, "/metrics"))[1])


@pytest.mark.usefixtures("scrub_server")
async def test_a_reason_is_one_short_line(shown, short_tmp):
    kubelet = kubelet_server.Kubelet(short_tmp)
    kubelet.refusal = "first\nsecond " + "x" * 1000
    await kubelet.start()
    it = await shown()
    await it.plugin.hear("not registered")
    status, why = await it.ready()
    assert (status, why.count("\n"), len(why) < 400) == (503, 1, True)
    assert "not registered: Register failed: UNKNOWN: first second x" in why
    assert registered(await it.scrape(), "refused") >= 1
    await kubelet.stop()


async def test_a_silent_service_is_reported_until_it_answers(scrub_server, kubelet, shown):
    scrub_server.silence = 0.2
    it = await shown()
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 2})
    await scrub_server.close()
    await it.plugin.hear(SILENT)
    scraped = await it.scrape()
    assert (scraped.of(plugin_metrics.SCRUBBER), scraped.of(plugin_metrics.READY), listed(scraped)) == (0, 0, (0, 2))
    status, why = await it.ready()
    assert status == 503
    assert why.startswith("not ready: the scrub service does not answer: cannot reach the scrub service at /")
    assert await get(it.address, "/healthz") == (200, "ok\n")
    await scrub_server.open()
    await it.plugin.hear("the scrub service answers again")
    scraped = await it.scrape()
    assert (scraped.of(plugin_metrics.SCRUBBER), scraped.of(plugin_metrics.READY), listed(scraped)) == (1, 1, (2, 0))
    assert await it.ready() == (200, "ready\n")


async def test_probes_learn_what_the_start_waits_for(scrub_server, shown, short_tmp):
    await scrub_server.close()
    it = await shown()
    await it.plugin.hear(NO_SERVICE)
    status, why = await it.ready()
    assert (status, "the scrub service does not answer: cannot reach" in why, why.count("\n")) == (503, True, 1)
    assert await get(it.address, "/healthz") == (200, "ok\n")
    scrub_server.say()
    await scrub_server.open()
    await it.plugin.hear("devices known")
    assert await it.ready() == (503, "not ready: there is no device to offer\n")
    scrub_server.say(gpu(0))
    await it.plugin.hear(NO_KUBELET)
    assert await it.ready() == (503, f"not ready: {GPU} is not registered: the plugin has not registered yet\n")
    scraped = await it.scrape()
    assert (scraped.of(plugin_metrics.READY), scraped.of(plugin_metrics.SCRUBBER)) == (0, 1)
    assert (registered(scraped, "registered"), scraped.of(plugin_metrics.CONNECTED, resource=GPU)) == (0, 0)
    kubelet = Kubelet(short_tmp)
    await kubelet.start()
    await it.plugin.hear("registered")
    assert await it.ready() == (200, "ready\n")
    await kubelet.stop()


async def test_many_pods_add_no_series(scrub_server, kubelet, shown):
    it = await shown()
    await kubelet.until(lambda: kubelet.allocatable == {GPU: 2})

    async def round_(number: int) -> None:
        pod = Pod.of(f"pod-{number}", {GPU: 1})
        await kubelet.run(pod)
        assert pod.phase is Phase.RUNNING
        await kubelet.delete(pod)

    async def refusal() -> None:
        scrub_server.answer = no(IN_USE)
        assert (await kubelet.admit(Pod.of("refused", {GPU: 1}))).phase is Phase.FAILED
        scrub_server.answer = yes

    await round_(0)
    await refusal()
    first = await it.scrape()
    for number in range(1, 200):
        await round_(number)
    await refusal()
    last = await it.scrape()
    assert last.unknown() == []
    assert last.series == first.series
    assert hooks(last, "Allocate", "ok") == 200
    assert last.of(plugin_metrics.HOOK_REFUSALS, hook="Allocate", reason="in-use") == 2
    rows = {*plugin_metrics.TABLE} - {plugin_metrics.VENDOR, plugin_metrics.UNKNOWN_VARIABLES}  # without --vendor-dir
    assert {row for row in plugin_metrics.TABLE if {name for name, _ in last.series} & set(row.series)} == rows
    assert all(last.families[row.stem].documentation == row.help for row in rows)
    assert all(last.families[row.stem].type == row.kind.value for row in rows)
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total"} <= {name for name, _ in last.series}
