"""The pages and alerts with a real Prometheus that scrapes a real node through its bad day.

It is one test, because the day is played once; each check returns the faults that it finds. The day is that of ``make
observe`` (``demo.bad_day``). Unlike on a node, Prometheus scrapes twice a second, the condition of an alert must
hold for half a second (``for``; windows and thresholds stay), and rates look back four seconds.
"""

import asyncio
import math
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from demo.bad_day import day
from demo.bad_day.node import CLUSTER, GPUS, NAME, TrialNode
from demo.bad_day.prometheus import Prometheus
from demo.containers import mark
from plugin.metrics import plugin_metrics as plugin_table
from scrubber.core.model import Availability
from scrubber.ledger import reading
from scrubber.metrics import service_metrics
from tests.dashboards import rulefiles
from tests.dashboards.panel_queries import PanelQuery, panel_queries
from tests.dashboards.ports import free_ports
from tests.patience import WITHIN

pytestmark = pytest.mark.night

EVERY = 0.5  # seconds
RATE = "4s"

# Panels that stay empty although everything works, and why. Every other panel must have data at the end of the day.
EMPTY = {
    ("autoclave-fleet", "Silent nodes", "A"): "the only node is heard again",
    ("autoclave-security", "Ledgers", "E"): "no receipt stays without a signature",
    ("autoclave-security", "GPUs with findings", "D"): "at the end no container is on the GPU of another pod",
}
# Alerts that may fire on this day, for example on a busy machine.
MAYBE = {
    "AutoclaveAbsent": "true until the first scrape",
    "AutoclaveServiceNotReady": "true for moments after a start",
    "AutoclaveFenceDown": "true for moments after a start, and for an ordinary user",
    "AutoclaveGpuNotClean": "true during each scrub",
    "AutoclaveLedgerSlow": "depends on the disk of this machine",
    "AutoclaveRegistrationsFailing": "the plugin tries often in the first seconds without a kubelet",
    "AutoclaveMonitorFailing": "each observation counts that a driver call or a full disk delays",
}
# An alert about a single event fires for an hour, also after the restarts of this day.
SHOWN_FOR_AN_HOUR = {
    "AutoclaveGpuFatalXid", "AutoclaveResidueFound", "AutoclaveUnauthorisedUse", "AutoclaveUnprovenGrants",
    "AutoclaveManualReinstate",
}  # fmt: skip
OF_THE_DRIVER = {row for row in plugin_table.DRA_TABLE if row not in plugin_table.TABLE}
OF_A_VENDOR = {*plugin_table.VENDOR.series, *plugin_table.UNKNOWN_VARIABLES.series}
NOT_HERE = OF_A_VENDOR | {series for row in OF_THE_DRIVER for series in row.series}
CLAIMS = "autoclave-claims"  # the page of the DRA driver, which does not run on this day
NO_RECORDING = {"uuid:dcgm_gpu_utilization:ratio": "there is no dcgm-exporter here"}


SET_OFF = {alert for acts in (*day.DAY, day.EVENING) for act in acts for alert in act.alerts}


class Seen:
    """The Prometheus at the end of the day."""

    def __init__(self, prometheus: Prometheus, node: TrialNode, began: float) -> None:
        self.ask, self.node, self.began, self.now = prometheus.ask, node, began, time.time()
        shown = {"cluster": CLUSTER, "node": NAME, "__rate_interval": RATE, "__range": f"{self.now - began:.0f}s"}
        self.panel_queries = list(panel_queries(shown))

    def answer(self, question: PanelQuery) -> list[dict[str, Any]]:
        if question.instant:
            return self.at_the_end(question.expression)
        asked = question.expression
        found: list[dict[str, Any]] = self.ask("query_range", query=asked, start=self.began, end=self.now, step=1)[
            "result"
        ]
        return found

    def at_the_end(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=expression, time=self.now)["result"]
        return found

    def panel(self, page: str, title: str) -> list[list[dict[str, Any]]]:
        """The results of the queries of a panel, in order."""
        return [self.answer(it) for it in self.panel_queries if (it.page, it.panel) == (page, title)]

    def alerts(self) -> set[str]:
        fired = 'count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1d]))'
        return {it["metric"]["alertname"] for it in self.at_the_end(fired)}


def shows_something(answer: list[dict[str, Any]]) -> bool:
    values = (value for series in answer for _, value in series.get("values", [series.get("value")]))
    return any(math.isfinite(float(value)) for value in values)


def every_panel_shows_something_or_has_a_reason(seen: Seen) -> list[str]:
    empty = set()
    for question in (it for it in seen.panel_queries if it.page != CLAIMS):
        try:
            if not shows_something(seen.answer(question)):
                empty.add((question.page, question.panel, question.ref))
        except ValueError as error:
            return [f"{question.page}, {question.panel}: {error}: {question.expression}"]
    return sorted(f"{it}" for it in empty if it not in EMPTY) + [f"{it} is not empty" for it in EMPTY.keys() - empty]


def every_rule_can_be_evaluated(seen: Seen) -> list[str]:
    rules = [rule for group in seen.ask("rules")["groups"] for rule in group["rules"]]
    problems = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]
    return problems + ([] if len(rules) == len(rulefiles.ALERTS) + len(rulefiles.RECORDED) else [f"{len(rules)} rules"])


def what_the_day_sets_off_fires_and_nothing_else(seen: Seen) -> list[str]:
    fired = seen.alerts()
    problems = [f"{alert} did not fire" for alert in sorted(SET_OFF - fired)]
    return problems + [f"{alert} fired" for alert in sorted(fired - SET_OFF - MAYBE.keys())]


def a_single_event_is_shown_for_an_hour(seen: Seen) -> list[str]:
    firing = {it["metric"]["alertname"] for it in seen.at_the_end('ALERTS{alertstate="firing"}')}
    return sorted(SHOWN_FOR_AN_HOUR - firing)


def every_metric_was_seen(seen: Seen) -> list[str]:
    names = set(seen.ask("label/__name__/values"))
    wanted = {*rulefiles.SERIES, *rulefiles.RECORDED} - NO_RECORDING.keys() - NOT_HERE
    return sorted(wanted - names) + [f"{name} was seen" for name in NO_RECORDING if name in names]


def what_is_counted_is_what_happened(seen: Seen) -> list[str]:
    """Counts include processes that have ended: one pod left its mark three times, two processes used a GPU without
    a grant.
    """
    bytes_found = [float(it["value"][1]) for it in seen.panel("autoclave-security", "GPUs with findings")[1]]
    [[unasked]] = seen.panel("autoclave-security", "Unauthorised use")
    problems = [] if 3 * len(mark(str(uuid.UUID(int=0)))) in bytes_found else [f"residue of {bytes_found} bytes"]
    return problems + ([] if unasked["value"][1] == "2" else [f"unasked: {unasked}"])


def every_gpu_was_in_one_group_all_day_and_every_group_was_seen(seen: Seen) -> list[str]:
    day = f"[{seen.now - seen.began:.0f}s:1s]"
    counts = "cluster:autoclave_devices:by_availability"
    most = {it["metric"]["availability"]: it["value"][1] for it in seen.at_the_end(f"max_over_time({counts}{day})")}
    problems = [f"no GPU was {group.value}" for group in Availability if most.get(group.value, "0") == "0"]
    sums = {seen.at_the_end(f"{how}_over_time(sum({counts}){day})")[0]["value"][1] for how in ("min", "max")}
    return problems + ([] if sums == {str(GPUS)} else [f"{sums} GPUs"])


def a_metric_leads_to_its_receipt(seen: Seen) -> list[str]:
    series = f"{service_metrics.TIME_TO_CLEAN.name}_bucket"
    found = seen.ask("query_exemplars", query=series, start=seen.began, end=seen.now)
    by_check = {it["labels"]["receipt"] for one in found for it in one["exemplars"]}
    lines = str(list(reading.export(seen.node.stage.ledger)))
    return [] if by_check and any(receipt in lines for receipt in by_check) else [f"{by_check}"]


CHECKS: tuple[Callable[[Seen], list[str]], ...] = (
    every_panel_shows_something_or_has_a_reason, every_rule_can_be_evaluated,
    what_the_day_sets_off_fires_and_nothing_else, a_single_event_is_shown_for_an_hour, every_metric_was_seen,
    what_is_counted_is_what_happened,
    every_gpu_was_in_one_group_all_day_and_every_group_was_seen,
    a_metric_leads_to_its_receipt,
)  # fmt: skip


async def until_seen(prometheus: Prometheus) -> None:
    """Wait until Prometheus has scraped the present state, and has evaluated all rules afterwards."""

    def scraped() -> float:
        return float(prometheus.ask("query", query="min(timestamp(up))")["result"][0]["value"][1])

    def evaluated() -> float:
        groups = prometheus.ask("rules")["groups"]
        return min(datetime.fromisoformat(group["lastEvaluation"]).timestamp() for group in groups)

    for last in (scraped, evaluated):
        now = time.time()
        while await asyncio.to_thread(last) < now:  # noqa: ASYNC110 - Prometheus offers no way to wait for it
            await asyncio.sleep(EVERY / 5)


@asynccontextmanager
async def a_bad_day() -> AsyncIterator[Seen]:
    """Play the whole day. At its end three GPUs are in quarantine."""
    port = free_ports()
    events: list[str] = []
    async with AsyncExitStack() as ends:
        node, prometheus = TrialNode(port), Prometheus(port + 2, EVERY)
        ends.push_async_callback(node.clear_away)
        ends.push_async_callback(prometheus.clear_away)

        async def until_reported(acts) -> None:
            missing = {alert for act in acts for alert in act.alerts}
            async with asyncio.timeout(WITHIN):
                await until_seen(prometheus)
                while missing := missing - await asyncio.to_thread(prometheus.firing):
                    events[-1:] = [f"{events[-1].partition('; not told')[0]}; not told: {missing}"]
                    await asyncio.sleep(EVERY / 5)  # Prometheus offers no way to wait for it

        try:
            await node.start_node()
            began = time.time()
            await prometheus.start(node)
            await day.play(node, day.DAY, until_reported, events.append)
            async with day.running(node, day.EVENING, until_reported, events.append):
                yield Seen(prometheus, node, began)
        except TimeoutError as error:
            pytest.fail(f"stuck at: {events[-1:]} {error}", pytrace=False)


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)")
@pytest.mark.timeout(900)
async def test_pages_and_alerts_show_a_bad_day():
    async with a_bad_day() as seen:
        by_check = {check.__name__: await asyncio.to_thread(check, seen) for check in CHECKS}
    assert {name: faults for name, faults in by_check.items() if faults} == {}
