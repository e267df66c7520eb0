"""The vectors in docs/receipts/vectors, made anew: ``python -m tests.receipts.vectors`` writes them.

Each case is a receipt as a container finds it, what a verifier is told, and the field that is wrong; empty: none is.
"""

import base64
import importlib.util
import json
from dataclasses import replace
from pathlib import Path

from policies.values import FenceMode, ScrubPath
from scrub_api.measurements import Uncovered
from scrubber.core import verdict
from scrubber.core.guarded import EndedTenancy, Guarded
from scrubber.core.measured import OWN_CONTEXT
from scrubber.core.model import Baseline, DeviceInfo, Incarnation, Moment, Receipt, Step
from scrubber.receipts import dsse, key, merkle, note, statement
from scrubber.receipts.note import Checkpoint
from tests.receipts.signing import WordSigner

FOLDER = Path(__file__).parents[2] / "docs" / "receipts" / "vectors"
SCRIPT = FOLDER.parent / "verify.py"
NODE, NEXT, OTHER, SITE = WordSigner("node"), WordSigner("next"), WordSigner("other"), WordSigner("site")
ORIGIN = "autoclave/gpu-1"
GPU, BOOT = "GPU-8f2c6f3e-1a2b-4c5d-8e9f-0123456789ab", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
HANDOVER, OLDER = "5e1f0a9b8c7d6e5f40312213", "00112233445566778899aabb"
PLACE, SIZE = 5, 11  # of the receipt in the log, and of the log


def receipt():
    draft = Receipt(
        id="", device=GPU, job="fedcba98765f", path=ScrubPath.FAST, incarnation=Incarnation(BOOT, "580.105.08 17640"),
        policy="default/defaults", policy_digest="5c1be2a94d0f7e36", finished=Moment(1764081234.123, 86400.346),
        steps=((Step.EVICT, 0.012), (Step.CLEAR, 0.431), (Step.VERIFY, 0.212), (Step.HEALTH, 0.02)),
        baseline=Baseline(), previous=None, digest="", covered_bytes=85_000_000_000, allocatable_bytes=85_500_000_000,
        residue_bytes=4096, processes_found=1, processes_terminated=1, searched_bytes=5_312_500_000,
        uncovered=(Uncovered(OWN_CONTEXT, 500_000_000),), patterns=("random", "zero"), last_owner="team-a/train-7",
    )  # fmt: skip
    digest = verdict.digest_of(draft)
    return replace(draft, id=digest[:16], digest=digest)


def receipts_script():
    """The verifier of the documentation, as a module."""
    found = importlib.util.spec_from_file_location("verify", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Log:
    """A log with the receipt in one of its rows."""

    def __init__(self, envelope, name="row") -> None:
        self.rows = [f"{name} {number}".encode().hex().ljust(64, "0") for number in range(SIZE)]
        self.nodes: dict[tuple[int, int], bytes] = {}
        frontier = merkle.Frontier()
        for index, row in enumerate(self.rows):
            leaf = merkle.leaf_of_row(row, envelope if index == PLACE else "")
            frontier, completed = frontier.grown(leaf)
            self.nodes |= {(level, place): node for level, place, node in completed}

    def checkpoint(self, size=SIZE, origin=ORIGIN, signer=NODE):
        return note.sign(Checkpoint(origin, size, merkle.frontier(size, lambda *at: self.nodes[at]).root), signer)

    def proof(self, checkpoint=None, place=PLACE):
        included = merkle.include(place, SIZE, lambda *at: self.nodes[at])
        return note.prove(included, self.rows[PLACE], checkpoint or self.checkpoint()).text


def statement_of(receipt):
    """What is signed."""
    device = DeviceInfo(GPU, 0, "NVIDIA H100 80GB HBM3", 85_520_809_984, pci_address="00000000:18:00.0")
    return statement.statement(receipt, device, HANDOVER, statement.Program("0.1.0"), "02ec0ba8" * 4, FENCE)


FENCE = Guarded(
    Moment(1764077634.5, 82800.0), FenceMode.HOLD, "", FenceMode.HOLD, "cf7e2eedcfc63004", "cf7e2eedcfc63004",
    ignored=2, refused=3,
)  # fmt: skip


def closing_of(wipe):
    """What is signed when the tenancy before this wipe is closed."""
    device = DeviceInfo(GPU, 0, "NVIDIA H100 80GB HBM3", 85_520_809_984)
    ended = EndedTenancy(
        7, BOOT, Moment(1764081230.5, 86396.7), Moment(1764077634.5, 82800.0), "3f9c1d52-7b1e-4a06-9a57-0d2c4f6b8e13",
        "team-a/train-7", receipt="0011223344556677", guarded=FENCE,
    )  # fmt: skip
    until = replace(FENCE, since=ended.ended, refused=0, ignored=0)
    return statement.closing(ended, until, wipe, device, HANDOVER, statement.Program("0.1.0", node="gpu-1"))


def cases():
    """Each case by its name: its files, what a verifier is told, and the field that is wrong."""
    said = statement_of(receipt())
    envelope = dsse.envelope(said, NODE)
    log, forked, other = Log(envelope), Log(envelope, "other"), dsse.envelope(said, NODE, payload_type="text/plain")
    altered = json.loads(envelope) | {"payload": base64.b64encode(said.replace(b"4096", b"0000")).decode()}
    longer = f"\n{base64.b64encode(bytes(32)).decode()}\n\n"
    expected = {"keys": ["node.pem"], "gpu": GPU, "boot": BOOT, "handover": HANDOVER}
    stated = closing_of(receipt())
    closing = dsse.envelope(stated, NODE)
    lied = json.loads(closing) | {"payload": base64.b64encode(stated.replace(b'"refused":3', b'"refused":0')).decode()}
    proven = Log(closing).proof()
    forged = base64.b64encode(key.note_id(ORIGIN, NEXT.public_key) + bytes(64)).decode()
    doubly, both = f"{log.checkpoint()}\u2014 {ORIGIN} {forged}\n", {"keys": ["next.pem", "node.pem"]}
    return {
        "closing": ({"closing.dsse.json": closing, "closing.tlog-proof": proven}, {}, ""),
        "closing-altered": ({"closing.dsse.json": json.dumps(lied)}, {}, "signature"),
        "closing-of-another-handover": ({"closing.dsse.json": closing}, {"handover": OLDER}, "handover"),
        "closing-not-in-the-log": ({"closing.tlog-proof": log.proof()}, {}, "proof"),
        "receipt-as-closing": ({"closing.dsse.json": envelope}, {}, "type"),
        "shows-a-closing": ({"receipt.dsse.json": closing}, {}, "type"),
        "right": ({}, {}, ""),
        "after-a-rotation": (
            {"receipt.tlog-proof": log.proof(log.checkpoint(signer=NEXT))}, both, ""
        ),
        "same-checkpoint": ({"checkpoint": log.checkpoint()}, {}, ""),
        "older-checkpoint-with-the-receipt": ({"checkpoint": log.checkpoint(PLACE + 1)}, {}, ""),
        "one-wrong-signature-of-two": ({"receipt.tlog-proof": log.proof(doubly)}, both, "checkpoint"),
        "another-gpu": ({}, {"gpu": "GPU-00000000"}, "gpu"),
        "another-boot": ({}, {"boot": "00000000"}, "boot"),
        "an-older-handover": ({}, {"handover": OLDER}, "handover"),
        "altered": ({"receipt.dsse.json": json.dumps(altered)}, {}, "signature"),
        "signed-by-another-key": ({"receipt.dsse.json": dsse.envelope(said, OTHER)}, {}, "signature"),
        "of-another-type": ({"receipt.dsse.json": other}, {}, "type"),
        "proof-before-the-receipt": ({"receipt.tlog-proof": log.proof(log.checkpoint(PLACE))}, {}, "checkpoint"),
        "checkpoint-before-the-receipt": ({"checkpoint": log.checkpoint(PLACE)}, {}, "checkpoint"),
        "two-histories": ({"checkpoint": forked.checkpoint()}, {}, "checkpoint"),
        "another-log": ({"checkpoint": log.checkpoint(origin="autoclave/gpu-2")}, {}, "checkpoint"),
        "checkpoint-by-another-key": (
            {"receipt.tlog-proof": log.proof(log.checkpoint(signer=OTHER))}, {}, "checkpoint"
        ),
        "proof-of-another-row": ({"receipt.tlog-proof": log.proof(place=PLACE + 1)}, {}, "proof"),
        "proof-with-one-hash-more": ({"receipt.tlog-proof": log.proof().replace("\n\n", longer, 1)}, {}, "proof"),
        "not-in-the-log": ({"receipt.tlog-proof": Log("{}").proof()}, {}, "proof"),
        "no-proof": ({"receipt.tlog-proof": "index 1\n"}, {}, "proof"),
    }, {"receipt.dsse.json": envelope, "receipt.tlog-proof": log.proof()}, expected  # fmt: skip


def made():
    """The content of each file of the folder, by its name."""
    each, right, expected = cases()
    files = {f"right/{name}": text for name, text in right.items()}
    for signer in (NODE, NEXT):
        files[f"{signer.word}.pem"] = key.public_pem(signer.public_key)
        files[f"{signer.word}.vkey"] = key.vkey(signer.public_key, ORIGIN) + "\n"
    listed = []
    for name, (changed, also, wrong) in each.items():
        files |= {f"{name}/{file}": text for file, text in changed.items()}
        closing = "closing" in name and "receipt.dsse.json" not in changed
        listed.append({"name": name, "files": sorted(changed), **expected, **also, "closing": closing, "wrong": wrong})
    return files | {"cases.json": json.dumps(listed, indent=2) + "\n"}


if __name__ == "__main__":
    for name, text in made().items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text)
