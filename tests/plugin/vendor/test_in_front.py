"""The real plugin in front of a vendor's: what the kubelet, the vendor and the scrub service see."""

import asyncio
from typing import Any, cast

import grpc
import pytest

from demo.standins.do_nothing_plugin import variable
from demo.standins.pods import Phase, Pod
from demo.standins.vendor_plugin import VendorPlugin
from ground.errors import VENDOR_LOG, Reason, Refused
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.kubelet_api import deviceplugin_pb2_grpc
from plugin.listing import Listing
from plugin.metrics import plugin_metrics
from plugin.vendor.directory import VendorDirectory
from plugin.vendor.offer import MOST, VendorList, VendorOffer
from tests.plugin.live_plugin import LIST_ENDED, NO_VENDOR, STANDING_BY, TAKEN_OVER, Plugin, allocate, own_socket
from tests.plugin.scraping import get, scrape
from tests.plugin.scrub_server import gpu, no, yes

GPU = "nvidia.com/gpu"
IDS = ["GPU-0000", "GPU-0001"]
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

pytestmark = pytest.mark.usefixtures("scrub_server", "kubelet")


class Vendor(VendorPlugin):
    """Remembers what it was asked, and answers with a field of a newer version of the API."""

    def __init__(self, root, ids=IDS) -> None:
        super().__init__(root, root / "vendor", ids)
        self.asked: list[str] = []
        self.is_asked = asyncio.Event()

    async def Allocate(self, request, context):  # noqa: N802 - the proto names it
        self.asked += request.container_requests[0].devices_ids
        self.is_asked.set()
        answer = await super().Allocate(request, context)
        answer.MergeFromString(b"\xc2\x3e\x03new")  # field 1000
        return answer


@pytest.fixture
async def vendor(short_tmp):
    """NVIDIA's plugin, which has not started yet."""
    it = Vendor(short_tmp)
    yield it
    await it.stop()


@pytest.fixture
async def front(plugin, short_tmp):
    """Start the plugin in front of the vendor's."""

    async def front(*flags: object) -> Plugin:
        it: Plugin = await plugin("--vendor-dir", short_tmp / "vendor", "--cdi-dir", short_tmp / "cdi", *flags)
        await it.hear(NO_VENDOR)
        return it

    return front


@pytest.fixture
def ready(front, vendor, kubelet):
    """Start both plugins, until the kubelet knows the devices."""

    async def ready() -> Plugin:
        it: Plugin = await front()
        await vendor.begin()
        await kubelet.registered(GPU)
        return it

    return ready


def pod(name="pod", number=1):
    return Pod.of(name, {GPU: number})


async def test_a_pod_gets_the_vendors_answer_after_the_service(scrub_server, kubelet, ready, vendor, short_tmp):
    scrub_server.say(*(gpu(number) for number in range(2)))
    scrub_server.receipts = {name: f"/state/receipts/of-{name}" for name in IDS}
    await ready()
    order = []

    async def acquired(_devices) -> None:
        order.append(list(vendor.asked))

    scrub_server.answer = acquired
    assert (await kubelet.run(pod(number=2))).phase is not Phase.FAILED
    assert order[0] == []  # the vendor is asked after the service
    assert sorted(vendor.asked) == IDS
    answer = await allocate(short_tmp, *IDS)
    [response] = answer.container_responses
    assert response.envs["NVIDIA_VISIBLE_DEVICES"] == ",".join(IDS)
    assert [(it.host_path, it.container_path, it.read_only) for it in response.mounts] == [
        (path, f"/run/autoclave/receipts/of-{name}", True) for name, path in scrub_server.receipts.items()
    ]
    assert response.envs["AUTOCLAVE_RECEIPTS"] == "/run/autoclave/receipts"
    assert b"new" in answer.SerializeToString()


async def test_the_vendors_entry_of_a_device_goes_on_unchanged(ready, vendor, short_tmp):
    vendor.nodes = {"GPU-0000": [3, 5]}
    await ready()
    async with grpc.aio.insecure_channel(f"unix:{own_socket(short_tmp)}") as channel:
        async for shown in deviceplugin_pb2_grpc.DevicePluginStub(channel).ListAndWatch(wire.Empty()):
            assert shown.SerializeToString(deterministic=True) == vendor._list().SerializeToString(deterministic=True)
            break


async def test_health_is_what_vendor_and_service_both_say(scrub_server, kubelet, front, vendor):
    await front()
    await vendor.begin()
    await kubelet.until(lambda: kubelet.devices(GPU) == dict.fromkeys(IDS, HEALTHY))
    vendor.devices["GPU-0001"] = UNHEALTHY
    vendor.show()
    await kubelet.until(lambda: kubelet.devices(GPU) == {"GPU-0000": HEALTHY, "GPU-0001": UNHEALTHY})
    scrub_server.say(gpu(0, healthy=False, quarantined=True), gpu(1))
    await kubelet.until(lambda: kubelet.devices(GPU)["GPU-0000"] == UNHEALTHY)
    await vendor.stop()
    vendor.devices = dict.fromkeys(IDS, HEALTHY)  # NVIDIA's plugin forgets at a restart
    await vendor.begin()
    await kubelet.until(lambda: kubelet.devices(GPU) == {"GPU-0000": UNHEALTHY, "GPU-0001": HEALTHY})


async def test_a_device_that_the_vendor_doubted_is_scrubbed_first(scrub_server, kubelet, front, vendor):
    scrubbed = asyncio.Event()

    async def distrusted(_devices) -> None:
        await scrubbed.wait()

    await front()
    scrub_server.answer = distrusted
    vendor.devices["GPU-0001"] = UNHEALTHY
    await vendor.begin()
    await scrub_server.until(lambda it: ("distrust", ("GPU-0001",)) in it.asked)
    vendor.devices = {"GPU-0000": UNHEALTHY, "GPU-0001": HEALTHY}
    vendor.show()
    await kubelet.until(lambda: kubelet.devices(GPU) == dict.fromkeys(IDS, UNHEALTHY))
    scrubbed.set()
    await kubelet.until(lambda: kubelet.devices(GPU) == {"GPU-0000": UNHEALTHY, "GPU-0001": HEALTHY})
    assert {request for request, _ in scrub_server.asked} == {"distrust"}  # no tenancy that never was


async def test_a_list_that_doubts_all_devices_stops_none_for_good(scrub_server, kubelet, ready, vendor):
    """As of NVIDIA's plugin when one GPU is lost. The scrub service knows which one."""
    scrubbed = asyncio.Event()

    async def distrusted(_devices) -> None:
        await scrubbed.wait()

    it = await ready()
    scrub_server.answer = distrusted
    for name in IDS:  # one after the other, as NVIDIA's plugin does
        vendor.devices[name] = UNHEALTHY
        vendor.show()
    await kubelet.until(lambda: kubelet.devices(GPU) == dict.fromkeys(IDS, UNHEALTHY))
    scrub_server.say(gpu(0, healthy=False, quarantined=True), gpu(1))
    scrubbed.set()
    await kubelet.until(lambda: kubelet.devices(GPU) == {"GPU-0000": UNHEALTHY, "GPU-0001": HEALTHY})
    assert {("distrust", (name,)) for name in IDS} <= {*scrub_server.asked}
    assert len(it.lines("the vendor's plugin calls all devices unhealthy: each goes out after a scrub")) == 1
    scrub_server.answer = yes
    await kubelet.run(mine := pod())
    assert mine.phase is Phase.RUNNING


async def test_an_older_service_keeps_a_doubted_device_out(scrub_server, kubelet, front, vendor):
    """An update of both programs runs a new plugin beside an old service for a moment."""
    scrub_server.answer = no(Refused(Reason.INTERNAL, "it does not know the request"))
    running = await front()
    vendor.devices["GPU-0001"] = UNHEALTHY
    await vendor.begin()
    line = await running.hear("cannot end the proof of a device")
    assert (line["device"], line["error"]) == ("GPU-0001", "it does not know the request")
    vendor.devices["GPU-0001"] = HEALTHY
    vendor.show()
    await scrub_server.until(lambda server: len(server.asked) > 2)
    assert kubelet.devices(GPU) == {"GPU-0000": HEALTHY, "GPU-0001": UNHEALTHY}
    scrub_server.answer = yes
    await kubelet.until(lambda: kubelet.devices(GPU) == dict.fromkeys(IDS, HEALTHY))


async def test_an_unknown_variable_of_the_vendor_stops_no_pod(kubelet, front, vendor):
    it = await front("--metrics-address", "127.0.0.1:0")
    await vendor.begin()
    await kubelet.registered(GPU)
    vendor.answer = lambda ids: wire.ContainerAllocateResponse(envs={**variable(ids).envs, "FROM_VENDOR": "1"})
    for name in ("first", "second"):
        assert (await kubelet.admit(pod(name))).phase is not Phase.FAILED
    [line] = it.lines("the vendor's plugin sets an unknown variable: it passes")
    assert (line["resource"], line["variable"]) == (GPU, "FROM_VENDOR")
    scraped = await scrape((await it.hear("showing metrics"))["address"])
    assert scraped.of(plugin_metrics.UNKNOWN_VARIABLES, resource=GPU) == 2


async def test_a_variable_passes_once_the_operator_allows_it(kubelet, front, vendor):
    it = await front("--vendor-variable", "NVIDIA_NEW")
    vendor.answer = lambda ids: wire.ContainerAllocateResponse(
        envs={**variable(ids).envs, "NVIDIA_NEW": "1"} | ({"CUDA_NEW": "1"} if ids == IDS[1:] else {})
    )
    await vendor.begin()
    await kubelet.registered(GPU)
    assert [(await kubelet.admit(pod(name))).phase for name in ("first", "second")][1] is Phase.FAILED
    assert (await it.hear("request refused"))["error"].find("to let it pass, set --vendor-variable CUDA_NEW") > 0


async def test_an_answer_that_disagrees_with_the_grant_is_refused(scrub_server, kubelet, ready, vendor):
    it = await ready()
    vendor.answer = lambda ids: variable([it for it in IDS if it not in ids])
    status = await kubelet.admit(pod())
    assert status.phase is Phase.FAILED
    assert "which was not granted" in (await it.hear("request refused"))["error"]
    assert scrub_server.asked[-1][0] == "release"  # the grant is given back


async def test_a_device_that_becomes_unhealthy_meanwhile_is_refused(scrub_server, kubelet, ready, vendor):
    """The vendor says so after the kubelet has chosen the device, and before the service has granted it."""
    it = await ready()
    asked = []

    async def acquired(devices) -> None:
        asked.append(devices)
        if len(asked) == 1:
            vendor.devices["GPU-0000"] = UNHEALTHY
            vendor.show()
            await it.hear("the vendor's plugin calls a device unhealthy: it is scrubbed again")

    scrub_server.answer = acquired
    status = await kubelet.admit(pod())
    assert status.phase is Phase.FAILED
    assert "the vendor's plugin calls GPU-0000 unhealthy" in status.message
    assert vendor.asked == []


async def test_an_error_of_the_vendor_gives_the_grant_back(scrub_server, kubelet, ready, vendor):
    await ready()
    vendor.fail["Allocate"] = "the vendor's\n\x1b[2Jown words" + 2000 * "!"
    status = await kubelet.admit(pod())
    assert status.phase is Phase.FAILED
    assert "the vendor's  [2Jown words!!!" in status.message  # no control character reaches an event
    assert len(status.message) < 1024
    assert scrub_server.asked[-1][0] == "release"


async def test_shares_of_a_gpu_are_listed_unhealthy_and_refused(kubelet, front, short_tmp):
    vendor = Vendor(short_tmp, ["GPU-0000::0", "GPU-0000::1"])
    it = await front()
    await vendor.begin()
    await kubelet.until(lambda: set(kubelet.devices(GPU).values()) == {UNHEALTHY})
    assert "time slicing or MPS" in (await it.hear("devices cannot be proven clean"))["error"]
    await vendor.stop()


@pytest.mark.parametrize(
    ("resource", "version", "endpoint"),
    [
        ("amd.com/gpu", "v1beta1", None),
        (GPU, "v1alpha1", None),
        (GPU, "v1beta1", "../nvidia-gpu.sock"),
        (GPU, "v1beta1", "kubelet.sock"),
        (GPU, "v1beta1", "no.sock"),
        (GPU, "v1beta1", "n" * 256),
        (GPU, "v1beta1", "n\0.sock"),
        (f"nvidia.com/{'n' * 256}", "v1beta1", None),
        ("nvidia.com/gpu\n", "v1beta1", None),
    ],
)
async def test_a_wrong_registration_is_refused(kubelet, front, vendor, resource, version, endpoint):
    await front()
    await vendor.serve()
    with pytest.raises(grpc.aio.AioRpcError, match="cannot register the plugin") as refused:
        await vendor.register(resource=resource, version=version, endpoint=endpoint)
    assert (refused.value.details() or "").isprintable()
    assert kubelet.capacity == {}


async def test_a_resource_whose_socket_has_a_long_path_is_refused(short_tmp):
    """The start of a server there would end the plugin."""
    directory = VendorDirectory(short_tmp, short_tmp / ("d" * 55), "nvidia.com", cast(Any, None), cast(Any, None))
    request = wire.RegisterRequest(version="v1beta1", resource_name=f"nvidia.com/{'n' * 63}")
    assert "is too long for the path of a socket in" in directory._wrong(request)
    request.resource_name = GPU
    assert directory._wrong(request) == ""


async def test_a_refused_list_does_not_prolong_the_last_one(short_tmp):
    directory = VendorDirectory(short_tmp, short_tmp, "nvidia.com", VendorOffer(), cast(Any, None))
    directory._take(GPU, None)
    ends = directory._keeping[GPU]
    with pytest.raises(ValueError, match="it has 4097 devices"):
        directory._take(GPU, VendorList(dict.fromkeys(map(str, range(MOST + 1)), b""), frozenset()))
    assert directory._keeping[GPU] is ends
    assert not ends.cancelled()
    ends.cancel()


async def test_a_list_in_time_keeps_the_devices_healthy(short_tmp):
    offer = VendorOffer()
    directory = VendorDirectory(short_tmp, short_tmp, "nvidia.com", offer, Listing(cast(Any, None), offer))
    directory._take(GPU, None)
    ends = directory._keeping[GPU]
    directory._take(GPU, VendorList({"GPU-0000": b""}, frozenset({"GPU-0000"})))
    assert ends.cancelled()
    assert offer.healthy(GPU, "GPU-0000")


async def test_a_list_that_cannot_be_used_offers_no_device(kubelet, ready, vendor):
    it, good = await ready(), vendor._list
    many = [wire.Device(ID=f"GPU-{number:05}", health=HEALTHY) for number in range(60_000)]
    vendor._list = lambda: wire.ListAndWatchResponse(devices=many)
    vendor.show()
    assert "it has 60000 devices" in (await it.hear(LIST_ENDED))["error"]
    await kubelet.until(lambda: set(kubelet.devices(GPU).values()) == {UNHEALTHY})
    vendor._list = good
    await kubelet.until(lambda: kubelet.devices(GPU) == dict.fromkeys(IDS, HEALTHY))
    assert (await kubelet.admit(pod())).phase is not Phase.FAILED


async def test_an_allocate_waits_for_a_vendor_that_restarts(kubelet, ready, vendor):
    it = await ready()
    await vendor.stop()
    await it.hear(LIST_ENDED)
    admission = asyncio.create_task(kubelet.admit(pod()))
    await vendor.begin()
    assert (await admission).phase is not Phase.FAILED


async def test_an_allocate_asks_a_vendor_that_registers_again(scrub_server, kubelet, ready, vendor):
    """While the service proves the devices, the vendor's plugin gets a new connection."""
    await ready()

    async def acquired(devices) -> None:
        if devices:
            await vendor.register()

    scrub_server.answer = acquired
    assert (await kubelet.admit(pod())).phase is not Phase.FAILED


async def test_an_allocate_cut_off_by_a_new_connection_is_refused(scrub_server, kubelet, ready, vendor):
    await ready()
    vendor.hold["Allocate"] = asyncio.Event()
    admission = asyncio.create_task(kubelet.admit(pod()))
    await vendor.is_asked.wait()
    await vendor.register()
    status = await admission
    assert status.phase is Phase.FAILED
    assert "the vendor's plugin of nvidia.com/gpu registered again before it answered" in status.message
    assert scrub_server.asked[-1][0] == "release"


async def test_a_vendor_without_its_socket_registers_again(kubelet, ready, short_tmp):
    it = await ready()
    await kubelet.stop()
    (short_tmp / "nvidia-gpu.sock").unlink(missing_ok=True)
    await kubelet.start()
    await kubelet.registered(GPU)
    assert (await kubelet.admit(pod())).phase is not Phase.FAILED
    await it.hear("the vendor's plugin has registered", times=2)  # after a new kubelet.sock
    assert (short_tmp / "nvidia-gpu.sock").exists()


async def test_our_restart_asks_the_vendor_to_register_again(kubelet, front, ready):
    it = await ready()
    assert await it.stop() == 0
    await front()
    await kubelet.until(lambda: kubelet.devices(GPU) == dict.fromkeys(IDS, HEALTHY))
    assert (await kubelet.admit(pod())).phase is not Phase.FAILED


async def test_a_plugin_on_standby_is_ready_without_the_vendor(front, vendor, plugin, kubelet, short_tmp):
    """Two updates in a row. Only when it is ready does a rolling update stop the other plugin."""
    flags = "--standby", "--metrics-address", "127.0.0.1:0"
    last = await front(*flags)
    await vendor.begin()
    await kubelet.registered(GPU)
    for name in ("first", "second"):
        following = await plugin("--vendor-dir", short_tmp / "vendor", "--cdi-dir", short_tmp / "cdi", *flags)
        await following.hear(STANDING_BY)
        await following.hear("devices known")
        assert await get((await following.hear("showing metrics"))["address"], "/readyz") == (200, "ready\n")
        before = len(kubelet.registrations)
        assert await last.stop() == 0
        last = following
        await kubelet.until(lambda before=before: len(kubelet.registrations) > before)
        await kubelet.until(lambda: kubelet.devices(GPU) == dict.fromkeys(IDS, HEALTHY))
        assert (await kubelet.run(pod(name))).phase is not Phase.FAILED


async def test_a_standby_takes_the_vendors_list_over(plugin, kubelet, short_tmp):
    """The vendor's plugin registers once, with the first one, which is then killed. Its list is what it says now."""
    flags = "--standby", "--vendor-dir", short_tmp / "vendor", "--cdi-dir", short_tmp / "cdi"
    first = await plugin(*flags)
    await first.hear(NO_VENDOR)
    vendor = Vendor(short_tmp)
    await vendor.serve()
    await vendor.register()
    await kubelet.registered(GPU)
    second = await plugin(*flags)
    await second.hear(STANDING_BY)
    await second.hear("devices known")
    vendor.devices["GPU-0001"] = UNHEALTHY  # it says so to the next one that asks
    first.process.kill()
    await second.hear(TAKEN_OVER)
    await kubelet.until(lambda: kubelet.devices(GPU) == {"GPU-0000": HEALTHY, "GPU-0001": UNHEALTHY})
    assert (await kubelet.run(pod())).phase is not Phase.FAILED
    await vendor.stop()


@pytest.mark.parametrize("left", ['{"nvidia.com/gpu": "gone.sock"}', '{"other.io/gpu": "nvidia-gpu.sock"}', "[1]", "{"])
async def test_what_the_last_plugin_left_is_checked_as_a_register(plugin, kubelet, vendor, short_tmp, left):
    flags = "--standby", "--vendor-dir", short_tmp / "vendor", "--cdi-dir", short_tmp / "cdi"
    first = await plugin(*flags)
    await first.hear(NO_VENDOR)
    second = await plugin(*flags)
    await second.hear(STANDING_BY)
    (short_tmp / "autoclave/vendor.json").write_text(left)
    (short_tmp / "autoclave/vendor.json").chmod(0o600)
    await vendor.serve()
    first.process.kill()
    await second.hear(NO_VENDOR)
    assert second.lines(TAKEN_OVER) == []
    await vendor.register()
    await kubelet.registered(GPU)


async def test_a_first_plugin_connects_to_no_vendor_by_itself(front, vendor, short_tmp):
    """The vendor's plugin may have gone back to the kubelet meanwhile, and sends its list to one only."""
    (short_tmp / "autoclave").mkdir(mode=0o750)
    (short_tmp / "autoclave/vendor.json").write_text('{"nvidia.com/gpu": "nvidia-gpu.sock"}')
    await vendor.serve()
    await front("--standby")
    assert not (short_tmp / "autoclave/vendor.json").exists()
    assert "GetDevicePluginOptions" not in vendor.left


async def test_a_start_asks_the_vendor_if_it_wants_that(kubelet, ready, vendor):
    vendor.prestart = True
    vendor.fail["PreStartContainer"] = "not yet"
    it = await ready()
    await kubelet.run(pod())
    refused = await it.hear("request refused")
    assert (refused["hook"], refused["error"]) == ("PreStartContainer", f"not yet; {VENDOR_LOG}")


async def test_a_container_starts_while_the_vendor_is_away(kubelet, ready, vendor):
    it = await ready()
    await kubelet.admit(mine := pod())
    await vendor.stop()
    await it.hear(LIST_ENDED)
    assert await kubelet.sync(mine)


async def test_a_preference_is_the_vendors_among_clean_devices(scrub_server, kubelet, ready, vendor):
    scrub_server.say(gpu(0, clean=False), gpu(1))
    vendor.prefer = ["GPU-0001"]
    await ready()
    await kubelet.admit(mine := pod())
    assert kubelet.held(mine) == {next(iter(kubelet.held(mine))): {GPU: ("GPU-0001",)}}
    assert "GetPreferredAllocation" in vendor.left


@pytest.mark.parametrize("left", [{"GPU-0000": UNHEALTHY, "GPU-0001": HEALTHY}, {"GPU-0001": HEALTHY}])
async def test_one_dead_gpu_stops_no_other(kubelet, ready, vendor, left):
    """NVIDIA's plugin reads the links of all GPUs before it prefers one. With a lost one, no pod would be admitted."""
    vendor.fail["GetPreferredAllocation"] = "unable to get device link information: GPU is lost"
    await ready()
    vendor.devices = left
    vendor.show()
    await kubelet.until(lambda: [it for it, how in kubelet.devices(GPU).items() if how == HEALTHY] == ["GPU-0001"])
    await kubelet.run(mine := pod())
    assert mine.phase is Phase.RUNNING
    assert [*kubelet.held(mine).values()] == [{GPU: ("GPU-0001",)}]
    assert "GetPreferredAllocation" in vendor.left
