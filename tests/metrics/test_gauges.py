"""How much is shown of a node with 56 devices, and that a day of churn adds nothing to it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest

from ground import paths
from ground.metric_table import Kind
from scrubber import assembly
from scrubber.config import BackendChoice, ScrubberConfig
from scrubber.core import events as ev
from scrubber.core.fencing import KeptOff
from scrubber.core.model import Ailment, AilmentKind, Grant, Owner, ScrubPath, Sign, Step, Trigger, Vitals, Xid
from scrubber.core.record import Record
from scrubber.devices.base import Readings
from scrubber.fence.live_openers import LiveOpeners
from scrubber.metrics import service_metrics
from scrubber.metrics.counters import ServiceCounters
from scrubber.policy import ActivePolicy
from scrubber.receipts import key
from scrubber.receipts.notary import SigningState
from tests.core import lives
from tests.core.lives import DEVICE

GPUS, SLICES = 8, 7
MOST_SERIES = 900  # of the 1,000 that /metrics may have: on a day on which every device has findings, and many errors


class Node:
    """A service that looks at nothing: its ledger is told what happens."""

    def __init__(self, root) -> None:
        places = {"state_dir": root / "state", "run_dir": root / "run", "kubelet_dir": root}
        (root / "run").mkdir(mode=0o700)
        config = ScrubberConfig(BackendChoice.SIMULATED, **places, simulated_gpus=1, simulated_memory=2**20)
        self.registry = CollectorRegistry()
        self.counters = counters = ServiceCounters(self.registry)
        backend = assembly.build_backend(config)
        ledger, pool = assembly.open_ledger(config, counters), assembly.build_pool(config)
        self.built = assembly.build(config, backend, ActivePolicy("default"), ledger, counters, pool)
        self.registry.register(self.built.collector)
        self.devices = [
            replace(DEVICE, uuid=f"MIG-{gpu}-{part}", index=gpu, slice=part, parent=f"GPU-{gpu}", mig=True)
            for gpu in range(GPUS)
            for part in range(SLICES)
        ]

    def record(self, uuid: str) -> Record:
        return self.built.ledger.records[uuid]

    async def tell(self, uuid: str, *events: ev.Event) -> None:
        await self.built.ledger.append("op", *((uuid, event) for event in events))

    async def scrub(self, uuid: str, path: ScrubPath, trigger: Trigger) -> None:
        await self.tell(uuid, ev.ScrubStarted(lives.job(path, trigger)))
        done = lives.results(path, clear={"residue_bytes": 9})
        await self.tell(uuid, ev.StepsRecorded("job-1", done))
        await self.tell(uuid, lives.passed(self.record(uuid)))

    async def tenant(self, uuid: str) -> None:
        receipt = lives.proof(self.record(uuid)).id
        granted = ev.Granted(Grant("grant", lives.NOW, "epoch", announced=True, receipt=receipt))
        await self.tell(uuid, granted, ev.PutInUse(Owner("pod", lives.NOW, seen=True)), ev.Released("it is gone"))

    def scrape(self) -> str:
        return str(generate_latest(self.registry), "utf-8")

    def series(self) -> list[str]:
        return [line for line in self.scrape().splitlines() if not line.startswith("#")]


@pytest.fixture
async def node(tmp_path):
    node = Node(tmp_path)
    for device in node.devices:
        await node.tell(device.uuid, ev.Discovered(device, lives.HERE))
        await node.scrub(device.uuid, ScrubPath.SLOW, Trigger.FIRST_LOOK)
    yield node
    await node.built.ledger.close()


async def day(node: Node) -> None:
    """What a node goes through whose driver clears nothing, and of whose devices every fourth has errors."""
    counters = node.counters
    for number, device in enumerate(node.devices):
        uuid = device.uuid
        await node.tenant(uuid)
        await node.scrub(uuid, ScrubPath.FAST, Trigger.RELEASE)
        ill = Vitals(xids=(Xid(1, 13), Xid(2, 31)), leaked_bytes=1, signs=(Sign(AilmentKind.HEAT, "hot"),))
        vitals = ill if number % 4 == 0 else Vitals()
        node.built.service.context.seen.vitals[uuid] = vitals
        counters.vitals(node.record(uuid), vitals)
        for request in ("acquire", "start"):
            counters.answered(request, "ok", "", 0.002 * number)
            counters.answered(request, "refused", "scrubbing", 1.0)
        if number % 7 == 0:
            ailment = Ailment(AilmentKind.XID, "it broke", xid=79)
            await node.tell(uuid, ev.Quarantined(lives.quarantine(ailment)))
            await node.tell(uuid, ev.ProbationStarted(lives.job(ScrubPath.RESET, Trigger.PROBATION), "autoclave"))
            await node.tell(uuid, lives.passed(node.record(uuid)))
        if number % 11 == 0:
            await node.tell(uuid, ev.Soiled("somebody used it", (lives.FOREIGN,)))
            await node.scrub(uuid, ScrubPath.FAST, Trigger.FOREIGN_USE)
    node.built.board_sampler.latest = {
        f"GPU-{gpu}": Readings(gpu, celsius=40.0, slowdown_celsius=90.0, watts=100.0) for gpu in range(GPUS)
    }


def name(line: str) -> str:
    """What a series is called, without its value and its exemplar."""
    return line.split(" # ", maxsplit=1)[0].rpartition(" ")[0]


async def test_churn_of_56_slices_adds_no_series(node):
    await day(node)
    first = node.series()
    await day(node)
    assert set(map(name, node.series())) == set(map(name, first))
    assert len(first) <= MOST_SERIES


async def test_a_removed_device_has_no_series(node):
    uuid = node.devices[0].uuid
    await node.tell(uuid, ev.Quarantined(lives.quarantine()))
    assert f'autoclave_quarantined{{gpu="0:0",reason="lost",uuid="{uuid}"}} 1.0' in node.series()
    await node.tell(uuid, ev.Reinstated("ann"))
    assert not [line for line in node.series() if line.startswith("autoclave_quarantined{")]


async def test_the_most_memory_that_a_proof_left_uncovered_is_shown(node):
    uuid = node.devices[0].uuid
    await node.tell(uuid, ev.Soiled("a process used it"), ev.ScrubStarted(lives.job()))
    proof = lives.passed(node.record(uuid)).receipt
    await node.tell(uuid, ev.ScrubPassed("job-1", replace(proof, covered_bytes=proof.allocatable_bytes - 7)))
    assert "autoclave_scrub_uncovered_bytes 7.0" in node.series()


async def test_devices_are_counted_by_what_the_fence_does(node, monkeypatch):
    unknown, to_all, gone = (device.uuid for device in node.devices[:3])
    await node.tell(gone, ev.Quarantined(lives.quarantine()))
    fence_all(node, monkeypatch, but=(unknown, gone), to_all=to_all)
    shown = {
        'autoclave_fence_devices{lacks="no device file",mode="none",wanted="hold"} 1.0',
        'autoclave_fence_devices{lacks="",mode="none",wanted="hold"} 1.0',
        'autoclave_fence_devices{lacks="",mode="open to all",wanted="hold"} 1.0',
        f'autoclave_fence_devices{{lacks="",mode="hold",wanted="hold"}} {len(node.devices) - 3}.0',
        "autoclave_fence_lease_seconds 599.0",
    }
    assert shown == {line for line in fence(node) if "since" not in line}, "nobody can open a GPU that is gone"


async def test_a_fence_that_does_not_stand_is_shown_with_why(node):
    lacks = "cannot fence simulated GPUs: the service was started without --cgroup-root"
    labels = f'lacks="{lacks}",mode="none",wanted="hold"'
    assert fence(node) == [f"autoclave_fence_devices{{{labels}}} {len(node.devices)}.0"]


def fence_all(node: Node, monkeypatch: pytest.MonkeyPatch, *, but: tuple[str, ...] = (), to_all: str = "") -> None:
    """A fence holds pods off all devices, but for these."""
    rules = SimpleNamespace(pods_share_groups=False, kept_off=lambda uuid: None if uuid in but else KeptOff.PODS)
    rules.lacks = lambda uuid: "no device file" if uuid in but else ""
    rules.opens_to_all, rules.keeps_out = lambda uuid: uuid == to_all, lambda uuid: uuid not in but
    rules.lease_left, rules.stands_since = 599.0, 1.0
    places = SimpleNamespace(exempts=lambda *_: False)
    guard = SimpleNamespace(below="", openers=LiveOpeners(lambda: 0.0), rules=rules, places=places)
    monkeypatch.setattr(node.built.service.context.observer.driver, "guard", guard)


def fence(node: Node) -> list[str]:
    """What is shown of the fence as a whole."""
    return [line for line in node.series() if line.startswith("autoclave_fence_")]


async def test_each_device_counts_once_and_a_replaced_one_never(node):
    await node.tell(node.devices[0].uuid, ev.Quarantined(lives.quarantine()))
    await node.tell(node.devices[1].uuid, ev.Soiled("somebody used it", (lives.FOREIGN,)))
    node.built.service.context.seen.blocked[node.devices[1].uuid] = "somebody holds it"
    await node.tell(node.devices[2].uuid, ev.Quarantined(lives.quarantine(Ailment(AilmentKind.REPLACED, "another"))))
    assert counted(node) == {
        "available": len(node.devices) - 3, "in_use": 0, "preparing": 0, "blocked": 1, "quarantined": 1,
    }  # fmt: skip


def counted(node: Node) -> dict[str, int]:
    """The devices in each group."""
    lines = [line for line in node.series() if line.startswith("autoclave_devices{")]
    return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}


async def test_a_replayed_ledger_starts_findings_at_zero(tmp_path):
    config = ScrubberConfig(state_dir=tmp_path, run_dir=tmp_path, kubelet_dir=tmp_path)
    before = assembly.open_ledger(config, ServiceCounters(CollectorRegistry()))
    await before.append("op", (DEVICE.uuid, ev.Discovered(DEVICE, lives.HERE)))
    await before.close()
    registry = CollectorRegistry()
    after = assembly.open_ledger(config, ServiceCounters(registry))
    labels = {"gpu": DEVICE.name, "uuid": DEVICE.uuid}
    used = registry.get_sample_value(service_metrics.UNAUTHORISED.name, labels | {"had_by": "nobody"})
    await after.close()
    assert (registry.get_sample_value(service_metrics.RESIDUE.name, labels), used) == (0, 0)


async def relaid(node: Node, layout: int) -> None:
    """An operator cuts the GPUs into other slices, and tenants come to them."""
    for number, device in enumerate(node.devices):
        out = lives.quarantine(Ailment(AilmentKind.RELAID, "laid out anew"))
        await node.tell(device.uuid, ev.Quarantined(out))
        vitals = Vitals(lost=True, relaid=True, xids=(Xid(9, 13),))  # of whatever is in its place
        node.built.service.context.seen.vitals[device.uuid] = vitals
        node.counters.vitals(node.record(device.uuid), vitals)
        node.devices[number] = replace(device, uuid=f"MIG-{device.index}-{device.slice}-{layout}")
    for device in node.devices:
        await node.tell(device.uuid, ev.Discovered(device, lives.HERE))
        await node.scrub(device.uuid, ScrubPath.SLOW, Trigger.FIRST_LOOK)


async def test_repeated_new_layouts_add_no_series(node):
    """All of it: what is counted of a device is gone with the device."""
    node.devices = node.devices[:4]
    await day(node)
    first = set(map(name, node.series())) | {'autoclave_quarantines_total{reason="relaid"}'}
    for layout in range(10):
        await relaid(node, layout)
    await day(node)
    assert {name(line).replace('-9"', '"') for line in node.series()} == first


async def test_every_gauge_of_the_table_has_a_value(node, monkeypatch):
    await day(node)
    sick, out, blocked, scrubbed = (device.uuid for device in node.devices[:4])
    grant = Grant("grant", lives.NOW, "epoch", announced=True, receipt=lives.proof(node.record(sick)).id)
    owner = Owner("pod", lives.NOW, seen=True)
    await node.tell(sick, ev.Granted(grant), ev.PutInUse(owner), ev.PutInUse(replace(owner, crowded=True)))
    await node.tell(sick, ev.AilmentFound(lives.quarantine().ailment))
    await node.tell(out, ev.Quarantined(lives.quarantine()))
    fence_all(node, monkeypatch)
    context = node.built.service.context
    context.seen.blocked[blocked] = "somebody holds it"
    node.counters.signing.last_checkpoint = 1.0
    node.built.monitor.ended = lives.NOW
    monkeypatch.setattr(context.jobs, "of", {scrubbed: SimpleNamespace(step=Step.CLEAR)}.get)
    shown = {name(line).partition("{")[0] for line in node.series()}
    gauges = {row.name for row in service_metrics.TABLE if row.kind in (Kind.GAUGE, Kind.INFO)}
    assert gauges - shown == set()
    assert f'autoclave_scrub_step{{gpu="0:3",step="clear",uuid="{scrubbed}"}} 1.0' in node.series()


async def test_a_container_that_only_the_fence_counted_crowds_a_device(node, monkeypatch):
    await day(node)
    uuid = node.devices[0].uuid
    grant = Grant("grant", lives.NOW, "epoch", announced=True, receipt=lives.proof(node.record(uuid)).id)
    await node.tell(uuid, ev.Granted(grant), ev.PutInUse(Owner("pod", lives.NOW, seen=True)))
    fence_all(node, monkeypatch)
    crowded = f'autoclave_device_crowded{{gpu="0:0",uuid="{uuid}"}} 1.0'
    assert crowded not in node.series()
    openers = node.built.service.context.observer.driver.guard.openers
    openers.add(uuid, lives.OPENER, ignored=False, at=0.0)
    assert crowded in node.series()


async def test_the_newest_signed_checkpoint_is_shown_where_there_is_one(node):
    assert service_metrics.SIGNED_CHECKPOINT.name not in node.scrape()
    node.counters.signing.last_checkpoint = 1_750_000_000.0
    assert f"{service_metrics.SIGNED_CHECKPOINT.name} 1.75e+09" in node.scrape()


async def test_receipts_of_a_service_whose_key_is_unusable_count(tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    config = ScrubberConfig(BackendChoice.SIMULATED, state_dir=tmp_path / "state", run_dir=tmp_path / "run")
    key.open_key(config.state_dir)
    (paths.receipt_key(config.state_dir) / key.KEY).unlink()
    counters = ServiceCounters(CollectorRegistry())
    ledger = assembly.open_ledger(config, counters)
    assert counters.signing == SigningState()
    await ledger.close()
