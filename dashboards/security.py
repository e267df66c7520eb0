"""Are the promises kept, and does every node keep the same ones? For whoever answers for the tenants' data."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from dashboards.look import BAD, BETTER_ZERO, GOOD, GREY, NO_ROW, SHOULD_BE_ZERO, WARN, words
from dashboards.outages import TO_GPU, WHERE
from dashboards.page import Band, Page, link
from dashboards.panels import Ask, Column, figure, lines, rows
from dashboards.query import DEVICE_ID, LATELY, PLACE, QueryScope, age, least, most, named
from scrubber.core.model import State
from scrubber.ground.metric_table import Row
from scrubber.metrics import table as service

SCOPE = QueryScope(PLACE)
NODE = {"cluster": "Cluster", "node": "Node"}
TO_NODE = link("autoclave-node", node="node")
ON_PLACE, ON_DEVICE = ", ".join(PLACE), ", ".join(DEVICE_ID)
NOBODY_KNOWS = words({NO_ROW: ("nobody knows", GREY)})

IS_CLEAN = f"{most(SCOPE.of(service.STATE, state=State.CLEAN.value), *DEVICE_ID)} == 1"
PROOFS = f"{age(most(SCOPE.of(service.LAST_SCRUB), *DEVICE_ID))} and on ({ON_DEVICE}) ({IS_CLEAN})"
UNCLEAN = "No GPU is clean, or no scrub service is scraped"


def _glance() -> Band:
    digests = f"count(count by (digest) ({SCOPE.of(service.POLICY)}))"
    return Band("Should be zero", 4, (
        (4, figure("Residue found", "Scrubs in the time shown that found bytes of an earlier user: the driver had not "
                   "cleared them, the scrub did before anybody else came.",
                   SCOPE.counted(service.RESIDUE), levels=SHOULD_BE_ZERO)),
        (4, figure("Used unasked", "Times in the time shown that somebody used a clean GPU without asking. Such a GPU "
                   "counts as dirty at once.", SCOPE.counted(service.UNAUTHORISED),
                   levels=SHOULD_BE_ZERO)),
        (4, figure("Policies in force", "Different policies on the nodes looked at, by their digest. More than one is "
                   "a drift, unless it is meant.", digests, levels=((1, GOOD), (2, WARN)))),
        (4, figure("Concessions", "Promises that the most lenient policy gives up. `autoclave status` lists them.",
                   most(SCOPE.of(service.CONCESSIONS)), levels=BETTER_ZERO)),
        (4, figure("Ledgers at fault", "Nodes whose ledger cannot be written: they hand nothing out.",
                   f"sum({SCOPE.of(service.LEDGER_FAULT)})", levels=SHOULD_BE_ZERO)),
        (4, figure("Grants by proof", "Devices handed out in the time shown, by what on. Without a proof only where "
                   "the policy is observe.", SCOPE.counted(service.GRANTS, "proof"), called="proof: {{proof}}")),
    ))  # fmt: skip


def _breaches() -> Band:
    def by_device(row: Row) -> str:
        return SCOPE.or_none(named(f"{SCOPE.grown(row, *DEVICE_ID, within=LATELY)} > 0"), "at")

    unasked = lines(
        "Used unasked over time", "Times that somebody used a clean GPU without asking, by GPU.", units.Short,
        Ask(by_device(service.UNAUTHORISED), "{{at}}"), bars=True,
    )  # fmt: skip
    residue = lines(
        "Residue", "Bytes of earlier users that scrubs found, and cleared, by GPU.", units.BytesIEC,
        Ask(by_device(service.RESIDUE_BYTES), "{{at}}"), bars=True,
    )  # fmt: skip
    who = rows(
        "GPUs with a finding", "In the time shown: scrubs that found residue, how much, and use without asking.", WHERE,
        Column("Residue found", SCOPE.or_silence(f"{SCOPE.grown(service.RESIDUE, *DEVICE_ID)} > 0", "node", NO_ROW),
               levels=SHOULD_BE_ZERO, words=NOBODY_KNOWS),
        Column("Bytes", f"{SCOPE.grown(service.RESIDUE_BYTES, *DEVICE_ID)} > 0", units.BytesIEC),
        Column("Used unasked", f"{SCOPE.grown(service.UNAUTHORISED, *DEVICE_ID)} > 0", levels=SHOULD_BE_ZERO),
        links={"GPU": TO_GPU}, empty="No GPU has a finding",
    )  # fmt: skip
    return Band("Breaches", 7, ((12, unasked), (12, residue), (24, who)))


def _people() -> Band:
    returns = lines(
        "Back from quarantine", "By evidence, or by a person's word without any: whose word, the ledger says "
        "(`autoclave history`).", units.Short,
        Ask(SCOPE.happenings(service.RETURNS, "by"), "{{by}}"), bars=True,
    )  # fmt: skip
    by_node = rows(
        "Returns by node", "Devices that came back from quarantine in the time shown, and by what.",
        {**NODE, "by": "By"},
        Column("Returns", SCOPE.or_silence(f"{SCOPE.grown(service.RETURNS, *PLACE, 'by')} > 0", "node", NO_ROW),
               words=NOBODY_KNOWS),
        links={"Node": TO_NODE}, empty="No GPU came back in this time",
    )  # fmt: skip
    grants = lines(
        "Grants", "Devices that were handed out: on a proof, or as policy observe lets them.", units.Short,
        Ask(SCOPE.happenings(service.GRANTS, "proof"), "proof: {{proof}}"),
        bars=True,
    )  # fmt: skip
    processes = lines(
        "Processes ended", "Processes of earlier users that scrubs have ended.", units.Short,
        Ask(SCOPE.grown(service.TERMINATED, within=LATELY), "ended"), bars=True,
    )  # fmt: skip
    return Band("Words and deeds", 8, ((6, returns), (6, by_node), (6, grants), (6, processes)))


def _policies() -> Band:
    drift = rows(
        "Policies", "Nodes by the policy in force and the digest of all that it says. Two digests under one name are "
        "two versions of a file.", {"policy": "Policy", "digest": "Digest"},
        Column("Nodes", f"count by (policy, digest) ({most(SCOPE.of(service.POLICY), *PLACE, 'policy', 'digest')})"),
        sorted_by="Nodes",
    )  # fmt: skip
    joined = f"* on ({ON_PLACE}) group_right () {most(SCOPE.of(service.POLICY), *PLACE, 'policy', 'digest')}"
    lenient = rows(
        "Nodes by what they concede", "The policy of each node, the promises that it gives up, and whether its file is "
        "wrong: the policy before it stays in force then.", {**NODE, "policy": "Policy", "digest": "Digest"},
        Column("Concessions", f"{most(SCOPE.of(service.CONCESSIONS), *PLACE)} {joined}", levels=BETTER_ZERO),
        Column("File", f"{most(SCOPE.of(service.POLICY_FAULT), *PLACE)} {joined}",
               words=words({0: ("right", GREY), 1: ("wrong", BAD)})),
        links={"Node": TO_NODE}, sorted_by="Concessions",
    )  # fmt: skip
    return Band("Policies", 8, ((9, drift), (15, lenient)))


def _evidence() -> Band:
    oldest = rows(
        "Oldest proofs", "Clean GPUs by the age of the proof that they would be handed out on.", WHERE,
        Column("Proof is", f"topk(20, {PROOFS})", units.Seconds),
        links={"GPU": TO_GPU}, empty=UNCLEAN, sorted_by="Proof is",
    )  # fmt: skip
    ledgers = rows(
        "Ledgers", "For each node: when the chain was last verified whole, whether it can be written, and damaged "
        "ledgers that lie beside it for a person to look at (`autoclave ledger verify`).", NODE,
        Column("Verified before", f"{age(most(SCOPE.of(service.LEDGER_VERIFIED), *PLACE))}"
               f" or {most(SCOPE.of(service.BUILD), *PLACE)} * 0 + ({NO_ROW})", units.Seconds,
               words=words({NO_ROW: ("never", BAD)})),
        Column("Rows", most(SCOPE.of(service.LEDGER_ROWS), *PLACE)),
        Column("Writable", most(SCOPE.of(service.LEDGER_FAULT), *PLACE),
               words=words({0: ("yes", GREY), 1: ("no", BAD)})),
        Column("Set aside", most(SCOPE.of(service.LEDGERS_SET_ASIDE), *PLACE), levels=BETTER_ZERO),
        links={"Node": TO_NODE}, sorted_by="Verified before",
    )  # fmt: skip
    proofs = lines(
        "Age of the oldest proof", "That a clean GPU would be handed out on.", units.Seconds,
        Ask(most(PROOFS), "oldest"), empty=UNCLEAN,
    )  # fmt: skip
    verified = lines(
        "Age of the oldest verification", "Of a ledger's chain, on the node where it is longest ago.", units.Seconds,
        Ask(age(least(SCOPE.of(service.LEDGER_VERIFIED))), "oldest"),
        empty="No ledger has been verified yet, or no scrub service is scraped",
    )  # fmt: skip
    return Band("Evidence", 8, ((12, oldest), (12, ledgers), (12, proofs), (12, verified)))


SECURITY = Page(
    "autoclave-security",
    "Autoclave / Security",
    "Are the promises kept, and does every node keep the same ones?",
    SCOPE,
    (_glance(), _breaches(), _people(), _policies(), _evidence()),
)
