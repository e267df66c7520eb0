"""A signed receipt has the published form, stays small, and names no owner."""

import hashlib
import json
import string
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from referencing import Registry, Resource

from policies.values import FenceMode, ScrubPath
from scrub_api.measurements import Uncovered
from scrubber.core import plans, verdict
from scrubber.core.guarded import UNKNOWN, EndedTenancy, Guarded
from scrubber.core.measured import OWN_BOOKS, OWN_CONTEXT, OWN_IDLE
from scrubber.core.model import Baseline, DeviceInfo, Incarnation, Moment, Receipt, Step
from scrubber.cuda import clearing
from scrubber.receipts import dsse, statement
from scrubber.receipts.statement import Program
from scrubber.receipts.tenant_files import owner_digest
from tests.receipts.signing import WordSigner

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "receipts" / "predicate.v1.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
CLOSING_SCHEMA = json.loads((ROOT / "docs" / "receipts" / "closings.v1.json").read_text())
REGISTRY = Registry().with_resource(SCHEMA["$id"], Resource.from_contents(SCHEMA))
CLOSING_VALIDATOR = jsonschema.Draft202012Validator(CLOSING_SCHEMA, registry=REGISTRY)
PAGE = (ROOT / "docs" / "receipts" / "predicate.md").read_text()
LARGEST = 3456  # bytes of an envelope
UUID, BOOT = "GPU-8f2c6f3e-1a2b-4c5d-8e9f-0123456789ab", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
ABOUT = Program("0.1.0", node="gpu-node-7.rack-12.site.example")
CAUSES = (OWN_IDLE, "in use before the scrub", OWN_CONTEXT, "left free in pieces too small to take", OWN_BOOKS)

texts = st.sampled_from(["", "plain", "é" * 100, "\u0001" * 100, '"\\' * 50, "\U0001f5a5" * 30])
counts = st.integers(0, 2**48)
owners = st.text(string.ascii_letters + string.digits + "-_/.:", max_size=80).map("team-{}".format)


LARGE_FENCE = Guarded(
    Moment(1764000000.123456, 1.0), FenceMode.REFUSE, "", FenceMode.HOLD, "e" * 16, "f" * 16,
    10**6, 10**6, 10**6, 10**6, open_to_all=True,
)  # fmt: skip


ENDED = EndedTenancy(
    7, BOOT, Moment(1764000009.0, 9.0), Moment(1764000001.0, 1.0), "uid-1", "team/train", "job 7", "r", LARGE_FENCE
)
CLOSED = (ENDED, replace(ENDED, guarded=replace(LARGE_FENCE, below="/trial")), EndedTenancy(7, BOOT, ENDED.ended))


def sealed(receipt):
    digest = verdict.digest_of(receipt)
    return replace(receipt, id=digest[:16], digest=digest)


def written(receipt, device, owner="", handover="a" * 24, about=ABOUT, guarded=LARGE_FENCE):
    return statement.statement(receipt, device, handover, about, owner_digest(b"secret", handover, owner), guarded)


devices = st.builds(
    DeviceInfo, uuid=st.just(UUID), index=st.just(0), model=texts, memory_bytes=counts, pci_address=texts,
    parent=st.sampled_from([None, "GPU-" + UUID[4:]]),
)  # fmt: skip
LEFT = clearing.not_overwritten((10, 9), virtual=True)
receipts = st.builds(
    Receipt, id=st.just(""), device=st.just(UUID), job=st.just("fedcba98765f"), path=st.sampled_from(ScrubPath),
    incarnation=st.builds(Incarnation, st.just(BOOT), texts), policy=texts, policy_digest=st.just("d" * 16),
    finished=st.builds(Moment, st.floats(0, 1e11), st.floats(0, 1e9)), baseline=st.just(Baseline()),
    steps=st.lists(st.tuples(st.sampled_from(Step), st.floats(0, 9999)), max_size=16).map(tuple),
    previous=st.sampled_from([None, "0" * 64]), digest=st.just(""), covered_bytes=counts, allocatable_bytes=counts,
    residue_bytes=counts, processes_found=counts, processes_terminated=counts,
    uncovered=st.lists(st.builds(Uncovered, texts, counts), max_size=12).map(tuple),
    patterns=st.sampled_from([("zero",), ("random", "ones", "zero")]), units=st.none() | counts,
    units_reached=st.none() | counts, shared_unreached_bytes=st.none() | counts,
    units_left=st.lists(st.sampled_from(LEFT), unique=True).map(tuple),
    tests=st.lists(texts, max_size=9).map(tuple), searched_bytes=st.none() | counts,
    last_owner=owners,
).map(sealed)  # fmt: skip

# As large as one can be on a real GPU: a slow path that was escalated to a reset, on a slice of a GPU.
LARGE = sealed(
    Receipt(
        id="", device=UUID, job="fedcba98765f", path=ScrubPath.RESET, policy="cluster-policy/" + 45 * "n",
        incarnation=Incarnation(BOOT, "580.105.08 1764081234.123456"), policy_digest="d" * 16,
        finished=Moment(1764081234.123456, 8640012.345678), baseline=Baseline(),
        steps=tuple((step, 1234.567) for step in (*plans.PLANS[ScrubPath.SLOW], *plans.PLANS[ScrubPath.RESET])),
        previous="0" * 64, digest="", covered_bytes=190_000_000_000, allocatable_bytes=191_000_000_000,
        residue_bytes=190_000_000_000, processes_found=1000, processes_terminated=1000,
        uncovered=tuple(Uncovered(cause, 400_000_000) for cause in CAUSES), patterns=("random", "ones", "zero"),
        units=160, units_reached=160, shared_unreached_bytes=163_840, tests=("address", "walking-ones", "arithmetic"),
        searched_bytes=190_000_000_000, units_left=clearing.not_overwritten((10, 0)),
    )
)  # fmt: skip
LARGE_DEVICE = DeviceInfo(
    UUID, 0, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 200_000_000_000, mig=True,
    pci_address="00000000:18:00.0", parent=UUID,
)  # fmt: skip


@given(receipts, devices, owners, st.booleans())
def test_every_statement_has_the_published_form_and_is_small(receipt, device, owner, simulated):
    payload = written(receipt, device, owner, about=replace(ABOUT, simulated=simulated))
    assert [*VALIDATOR.iter_errors(json.loads(payload))] == []
    assert len(dsse.envelope(payload, WordSigner())) <= LARGEST


def test_the_largest_receipt_of_a_real_gpu_is_small():
    size = len(dsse.envelope(written(LARGE, LARGE_DEVICE, "owner"), WordSigner()))
    assert size <= LARGEST
    assert f"{size:,} bytes" in PAGE


@given(owners, owners)
def test_no_envelope_names_an_owner_a_job_or_the_handover(owner, other):
    """The digest of the receipt contains the owner's name, and the job's id, which makes it impossible to guess."""
    handover = hashlib.sha256(other.encode()).hexdigest()[:24]
    receipt = sealed(replace(LARGE, last_owner=owner, residue_at=(987_654_321_987,)))
    payload = written(receipt, LARGE_DEVICE, owner, handover)
    for secret in (owner, handover, receipt.job, "987654321987"):
        assert secret not in payload.decode()
    assert written(receipt, LARGE_DEVICE, other, handover) != payload or owner == other


def test_the_subjects_are_the_handover_and_the_receipt():
    document = json.loads(written(LARGE, LARGE_DEVICE, handover="b" * 24))
    text = f"{UUID}\n{BOOT}\n{'b' * 24}\n"
    assert {it["name"]: it["digest"]["sha256"] for it in document["subject"]} == {
        "hand-over": hashlib.sha256(text.encode()).hexdigest(),
        "receipt": LARGE.digest,
    }


def test_the_claim_is_clear_of_so_many_bytes():
    short = replace(LARGE, steps=((Step.VERIFY, 1.0),))  # there is room for the causes
    claim = json.loads(written(short, LARGE_DEVICE))["predicate"]["sanitization"]
    assert (claim["standard"], claim["category"], claim["verification"]) == ("NIST SP 800-88r2", "Clear", "full")
    assert (claim["coveredBytes"], claim["allocatableBytes"]) == (190_000_000_000, 191_000_000_000)
    assert [(part["cause"], part["bytes"]) for part in claim["uncovered"]] == [(it, 400_000_000) for it in CAUSES]
    unread = replace(LARGE, steps=((Step.CLEAR, 1.0),))
    assert json.loads(written(unread, LARGE_DEVICE))["predicate"]["sanitization"]["verification"] == "none"


@pytest.mark.parametrize(
    ("patterns", "tests", "left"),
    [(("random", "zero"), (), None), (("random",), (), "random"), (("random",), ("arithmetic",), None)],
)
def test_the_claim_names_a_pattern_that_stays_in_memory(patterns, tests, left):
    """Without the field, zeros were left: a self-test ends with them."""
    payload = json.loads(written(replace(LARGE, patterns=patterns, tests=tests), LARGE_DEVICE))
    assert [*VALIDATOR.iter_errors(payload)] == []
    claim = payload["predicate"]["sanitization"]
    assert (claim["patterns"], claim.get("left")) == ([*patterns], left)


def test_the_claim_names_what_was_not_overwritten_on_the_chip():
    claim = json.loads(written(LARGE, LARGE_DEVICE))["predicate"]["sanitization"]
    assert claim["unitsLeft"] == ["caches", "some registers", "tensor memory"]
    without = json.loads(written(replace(LARGE, units_left=()), LARGE_DEVICE))
    assert "unitsLeft" not in without["predicate"]["sanitization"]


def test_a_simulated_gpu_makes_no_claim_of_nist():
    predicate = json.loads(written(LARGE, LARGE_DEVICE, about=replace(ABOUT, simulated=True)))["predicate"]
    claim = predicate["sanitization"]
    assert (predicate["device"]["simulated"], claim["simulated"]) == (True, True)
    assert claim.keys().isdisjoint({"standard", "category"})
    claimed = predicate | {"sanitization": claim | {"standard": "NIST SP 800-88r2", "category": "Clear"}}
    errors = VALIDATOR.iter_errors(json.loads(written(LARGE, LARGE_DEVICE)) | {"predicate": claimed})
    assert [error.validator for error in errors] == ["oneOf"]


@given(st.lists(counts, max_size=20))
def test_uncovered_parts_always_add_up(sizes):
    parts = tuple(Uncovered(str(number), size) for number, size in enumerate(sizes))
    claim = json.loads(written(replace(LARGE, uncovered=parts), LARGE_DEVICE))["predicate"]["sanitization"]
    assert sum(part["bytes"] for part in claim["uncovered"]) == sum(sizes)
    assert len(claim["uncovered"]) <= statement.PARTS


def test_nothing_claims_more_than_clear():
    sources = [*(ROOT / "scrubber" / "receipts").glob("*.py"), *(ROOT / "docs" / "receipts").glob("*.json")]
    assert sources
    claimed = [path.name for path in sources if {"purge", "certified"} & {*path.read_text().lower().split()}]
    assert claimed == []
    payload = written(LARGE, LARGE_DEVICE).decode().lower()
    assert "purge" not in payload
    assert "certif" not in payload


def properties(schema):
    """The names of all fields that the schema describes."""
    for name, field in schema.get("properties", {}).items():
        yield name
        yield from properties(field)
        yield from properties(field.get("items", {}))


@pytest.mark.parametrize("ended", CLOSED, ids=["counted", "below a group", "not known"])
def test_each_closing_receipt_has_its_schema(ended):
    content = json.loads(statement.closing(ended, UNKNOWN, LARGE, LARGE_DEVICE, "ab" * 12, ABOUT))
    CLOSING_VALIDATOR.validate(content)
    assert set(content["predicate"]) <= CLOSING_SCHEMA["properties"]["predicate"]["properties"].keys()
    assert set(content["predicate"]["fence"]) <= SCHEMA["$defs"]["fence"]["properties"].keys()
    del content["predicate"]["fence"]["mode"]
    assert not CLOSING_VALIDATOR.is_valid(content)


def test_the_page_explains_each_field():
    schemas = SCHEMA["properties"]["predicate"], CLOSING_SCHEMA["properties"]["predicate"], SCHEMA["$defs"]["fence"]
    names = {name for schema in schemas for name in properties(schema)}
    assert {"coveredBytes", "below"} < names
    assert sorted(name for name in names if f"`{name}`" not in PAGE) == []


def test_a_statement_names_its_node_where_there_is_room():
    device, short = DeviceInfo(UUID, 0, "GPU", 1), sealed(replace(LARGE, steps=()))
    assert json.loads(written(short, device))["predicate"]["node"] == ABOUT.node
    without = written(short, device, about=Program("0.1.0"))
    assert "node" not in json.loads(without)["predicate"]
    full = written(LARGE, LARGE_DEVICE, "owner")
    assert full == written(LARGE, LARGE_DEVICE, "owner", about=Program("0.1.0")), "the causes come first"
