"""The page of the promises: are they kept, and does every node run the same policy?"""

from __future__ import annotations

from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.outages import NODE, TO_GPU, TO_NODE, WHERE
from dashboards.page import Page, Section
from dashboards.panels import NO_EVENT, Column, Query, graph, stat, table
from dashboards.query import DEVICE_ID, PLACE, RECENT, QueryScope, age, largest, smallest, sum_of, with_device
from dashboards.style import BAD, BETTER_ZERO, GOOD, GREY, NO_ROW, SHOULD_BE_ZERO, WARN, value_words
from ground.metric_table import Row
from scrub_api.views import OPEN_TO_ALL, WATCHES_ONLY
from scrubber.core.model import State
from scrubber.metrics import service_metrics as service

SCOPE = QueryScope(PLACE)
ON_PLACE, ON_DEVICE = ", ".join(PLACE), ", ".join(DEVICE_ID)
NOT_SCRAPED = value_words({NO_ROW: ("unknown", GREY)})

IS_CLEAN = f"{largest(SCOPE.of(service.STATE, state=State.CLEAN.value), *DEVICE_ID)} == 1"
PROOFS = f"{age(largest(SCOPE.of(service.LAST_SCRUB), *DEVICE_ID))} and on ({ON_DEVICE}) ({IS_CLEAN})"
STANDS = ("hold", "refuse", "watch", WATCHES_ONLY, OPEN_TO_ALL)  # what a fence may do
UNCLEAN = "No GPU is clean, or no scrub service is scraped"


def _overview() -> Section:
    return Section("Should be zero", 4, (
        (8, stat("Residue found", "Scrubs in the time range that found data of an earlier user. The driver had not "
                 "cleared it; the scrub did, before any other pod got the GPU.",
                 SCOPE.count_in_range(service.RESIDUE), levels=SHOULD_BE_ZERO)),
        (8, stat("Unauthorised use", "How often in the time range a process used a clean GPU without a grant, or a "
                 "container one of another pod or job.", SCOPE.count_in_range(service.UNAUTHORISED),
                 levels=SHOULD_BE_ZERO)),
        (8, stat("Ledger faults", "Nodes whose ledger cannot be written. They hand out no GPU.",
                 f"sum({SCOPE.of(service.LEDGER_FAULT)})", levels=SHOULD_BE_ZERO)),
    ))  # fmt: skip


def _promises() -> Section:
    digests = f"count(count by (digest) ({SCOPE.of(service.POLICY)}))"
    return Section("What the policies promise", 4, (
        (8, stat("Policies in force", "Different policies on the selected nodes, by digest. More than one is a "
                 "drift, unless it is intended.", digests, levels=((1, GOOD), (2, WARN)))),
        (8, stat("Concessions", "Promises that the most lenient policy gives up. `autoclave status` lists them.",
                 largest(SCOPE.of(service.CONCESSIONS)), levels=BETTER_ZERO)),
        (8, stat("Grants by proof", "Devices handed out in the time range, by kind of proof. Only mode observe "
                 "hands out devices without a proof.",
                 SCOPE.count_in_range(service.GRANTS, "proof"), legend="proof: {{proof}}")),
    ))  # fmt: skip


def _findings() -> Section:
    def by_device(row: Row, *more: str) -> str:
        return SCOPE.or_zero(with_device(f"{SCOPE.increase(row, *DEVICE_ID, *more, within=RECENT)} > 0", *more), "at")

    unauthorised = graph(
        "Unauthorised use over time", "How often a process used a GPU without a grant, by GPU and by who had it: "
        "nobody, or a tenant.", units.Short, Query(by_device(service.UNAUTHORISED, "had_by"), "{{at}}"), bars=True,
    )  # fmt: skip
    asked = graph(
        "Open attempts on GPUs of others", "How often processes tried to open GPUs that were not given to them, by "
        "answer. One opening asks two or three times.", units.Short,
        Query(SCOPE.recent_by(service.FENCE_ATTEMPTS, "answer"), "{{answer}}"), bars=True,
    )  # fmt: skip
    residue = graph(
        "Residue", "Bytes of earlier users that scrubs found and cleared, by GPU.", units.BytesIEC,
        Query(by_device(service.RESIDUE_BYTES), "{{at}}"), bars=True,
    )  # fmt: skip
    who = table(
        "GPUs with findings", "GPUs with residue or unauthorised use in the range.",
        WHERE,
        Column("Residue found", SCOPE.or_not_scraped(f"{SCOPE.increase(service.RESIDUE, *DEVICE_ID)} > 0", "node",
                                                     NO_ROW),
               levels=SHOULD_BE_ZERO, words=NOT_SCRAPED),
        Column("Bytes", f"{SCOPE.increase(service.RESIDUE_BYTES, *DEVICE_ID)} > 0", units.BytesIEC),
        Column("Unauthorised use", f"{SCOPE.increase(service.UNAUTHORISED, *DEVICE_ID)} > 0", levels=SHOULD_BE_ZERO),
        Column("Another container now", largest(SCOPE.of(service.CROWDED), *DEVICE_ID), levels=SHOULD_BE_ZERO),
        links={"GPU": TO_GPU}, empty="No GPU has a finding",
    )  # fmt: skip
    return Section("Findings", 7, ((8, unauthorised), (8, asked), (8, residue), (24, who)))


def _people() -> Section:
    returns = graph(
        "Returns from quarantine",
        "Returns by evidence, or by the decision of an operator. `autoclave history` shows the "
        "name of the operator.", units.Short,
        Query(SCOPE.recent_by(service.RETURNS, "by"), "{{by}}"), bars=True,
    )  # fmt: skip
    by_node = table(
        "Returns by node", "Devices that returned from quarantine in the time range, by kind of evidence.",
        {**NODE, "by": "By"},
        Column("Returns", SCOPE.or_not_scraped(f"{SCOPE.increase(service.RETURNS, *PLACE, 'by')} > 0", "node", NO_ROW),
               words=NOT_SCRAPED),
        links={"Node": TO_NODE}, empty="No GPU returned in this time range",
    )  # fmt: skip
    grants = graph(
        "Grants", "Devices handed out, on a proof or under mode observe.", units.Short,
        Query(SCOPE.recent_by(service.GRANTS, "proof"), "proof: {{proof}}"),
        bars=True,
    )  # fmt: skip
    processes = graph(
        "Processes ended", "Processes that scrubs have ended.", units.Short,
        Query(SCOPE.increase(service.TERMINATED, within=RECENT), "ended"), bars=True, empty=NO_EVENT,
    )  # fmt: skip
    return Section("People and processes", 8, ((6, returns), (6, by_node), (6, grants), (6, processes)))


def _policies() -> Section:
    drift = table(
        "Policies",
        "Nodes by policy and digest of the policy content. Two digests for one name are two versions of "
        "a file.", {"policy": "Policy", "digest": "Digest"},
        Column("Nodes", f"count by (policy, digest) ({largest(SCOPE.of(service.POLICY), *PLACE, 'policy', 'digest')})"),
        sorted_by="Nodes",
    )  # fmt: skip
    joined = f"* on ({ON_PLACE}) group_right () {largest(SCOPE.of(service.POLICY), *PLACE, 'policy', 'digest')}"
    lenient = table(
        "Concessions by node",
        "The policy of each node, the number of promises that it gives up, and "
        "whether the policy file is valid. If the file has faults, the previous "
        "policy stays in force.", {**NODE, "policy": "Policy", "digest": "Digest"},
        Column("Concessions", f"{largest(SCOPE.of(service.CONCESSIONS), *PLACE)} {joined}", levels=BETTER_ZERO),
        Column("Policy file", f"{largest(SCOPE.of(service.POLICY_FAULT), *PLACE)} {joined}",
               words=value_words({0: ("valid", GREY), 1: ("has faults", BAD)})),
        links={"Node": TO_NODE}, sorted_by="Concessions",
    )  # fmt: skip
    return Section("Policies", 8, ((9, drift), (15, lenient), (24, _fence())))


def _fence() -> Panel:
    by = (*PLACE, "wanted", "mode", "lacks")
    stands = f"0 * {sum_of(SCOPE.of(service.FENCE_DEVICES, mode=STANDS), *by)} + on ({ON_PLACE}) group_left ()"
    return table(
        "Fence",
        "GPUs of each node by what the policy wants of the fence, and by what the fence does with a process that was "
        "not given the GPU. Lacks: why it does less. Lease: how long it refuses others without a sign of the service.",
        {**NODE, "wanted": "Policy", "mode": "Fence", "lacks": "Lacks"},
        Column("GPUs", sum_of(SCOPE.of(service.FENCE_DEVICES), *by)),
        Column("Without a gap for", f"{stands} ({age(largest(SCOPE.of(service.FENCE_SINCE), *PLACE))})", units.Seconds),
        Column("Lease", f"{stands} {largest(SCOPE.of(service.FENCE_LEASE), *PLACE)}", units.Seconds),
        links={"Node": TO_NODE}, sorted_by="Lacks",
    )  # fmt: skip


def _evidence() -> Section:
    oldest = table(
        "Oldest proofs", "Clean GPUs by the age of their proof.", WHERE,
        Column("Age of the proof", f"topk(20, {PROOFS})", units.Seconds),
        links={"GPU": TO_GPU}, empty=UNCLEAN, sorted_by="Age of the proof",
    )  # fmt: skip
    ledgers = table(
        "Ledgers", "For each node: the age of the last full verification and of the newest signed checkpoint, receipts "
                   "without a signature in the range, whether the ledger is writable, and the number of damaged "
                   "ledgers that were set aside (`autoclave ledger verify`).", NODE,
        Column("Last verified", f"{age(largest(SCOPE.of(service.LEDGER_VERIFIED), *PLACE))}"
               f" or {largest(SCOPE.of(service.BUILD), *PLACE)} * 0 + ({NO_ROW})", units.Seconds,
               words=value_words({NO_ROW: ("never", BAD)})),
        Column("Rows", largest(SCOPE.of(service.LEDGER_ROWS), *PLACE)),
        Column("Writable", largest(SCOPE.of(service.LEDGER_FAULT), *PLACE),
               words=value_words({0: ("yes", GREY), 1: ("no", BAD)})),
        Column("Signed", f"{age(largest(SCOPE.of(service.SIGNED_CHECKPOINT), *PLACE))}"
               f" or {largest(SCOPE.of(service.BUILD), *PLACE)} * 0 + ({NO_ROW})", units.Seconds,
               words=value_words({NO_ROW: ("no key", GREY)})),
        Column("Unsigned receipts", f"{SCOPE.increase(service.UNSIGNED, *PLACE)} > 0", levels=SHOULD_BE_ZERO),
        Column("Set aside", largest(SCOPE.of(service.LEDGERS_SET_ASIDE), *PLACE), levels=BETTER_ZERO),
        links={"Node": TO_NODE}, sorted_by="Last verified",
    )  # fmt: skip
    proofs = graph(
        "Age of the oldest proof", "The oldest proof of a clean GPU.", units.Seconds,
        Query(largest(PROOFS), "oldest"), empty=UNCLEAN,
    )  # fmt: skip
    verified = graph(
        "Age of the oldest verification", "The longest time since a ledger was fully verified.", units.Seconds,
        Query(age(smallest(SCOPE.of(service.LEDGER_VERIFIED))), "oldest"),
        empty="No ledger has been verified yet, or no scrub service is scraped",
    )  # fmt: skip
    return Section("Evidence", 8, ((12, oldest), (12, ledgers), (12, proofs), (12, verified)))


SECURITY = Page(
    "autoclave-security",
    "Autoclave / Security",
    "Are the promises kept, and does every node run the same policy?",
    SCOPE,
    (_overview(), _promises(), _findings(), _people(), _policies(), _evidence()),
)
