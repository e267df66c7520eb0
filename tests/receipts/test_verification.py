"""Each forgery is found, by our verifier and by the script in the documentation, and each names the field."""

import json
import os
import pwd
import re
import shutil
import string
import subprocess
import sys
from pathlib import Path

import pytest

from ground.public_names import CLOSING_TYPE, PREDICATE_TYPE
from scrubber.receipts import dsse, key, verification
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.verification import Expected
from tests.receipts import vectors
from tests.receipts.vectors import FOLDER, NODE, OTHER, SCRIPT

JUDGE = Path(__file__).parents[1] / "cluster" / "node"
CASES = {case["name"]: case for case in json.loads((FOLDER / "cases.json").read_text())}
WORDS = {"handover": "hand-over", "type": "[Tt]ype"}
RIGHT = {name: (FOLDER / "right" / name).read_text() for name in ("receipt.dsse.json", "receipt.tlog-proof")}


RIGHT_CLOSING = {name: (FOLDER / "closing" / name).read_text() for name in ("closing.dsse.json", "closing.tlog-proof")}


def files(case):
    """The texts of a case by the names of their files."""
    return (RIGHT_CLOSING if case["closing"] else RIGHT) | {
        name: (FOLDER / case["name"] / name).read_text() for name in case["files"]
    }


def test_the_committed_vectors_are_those_that_are_made():
    there = {path.relative_to(FOLDER).as_posix(): path.read_text() for path in FOLDER.rglob("*") if path.is_file()}
    assert there == vectors.made()


def ours(case):
    """What our verifier says of a case."""
    texts, expected = files(case), Expected(case["gpu"], case["boot"], case["handover"])
    keys = [key.public_key_of((FOLDER / name).read_text()) for name in case["keys"]]
    word, kind = ("closing", CLOSING_TYPE) if case["closing"] else ("receipt", PREDICATE_TYPE)
    verification.statement(texts[f"{word}.dsse.json"], keys, expected, kind)
    held = [texts["checkpoint"]] if "checkpoint" in texts else []
    return verification.logged(texts[f"{word}.dsse.json"], texts[f"{word}.tlog-proof"], keys, held)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["wrong"]])
def test_our_verifier_names_the_wrong_field(name):
    wrong = CASES[name]["wrong"]
    with pytest.raises(
        ReceiptError, match=f"^(?i:the (envelope's )?(payload)?|this is not a ){WORDS.get(wrong, wrong)}"
    ):
        ours(CASES[name])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case["wrong"]])
def test_our_verifier_accepts_a_right_receipt(name):
    found = ours(CASES[name])
    assert (found.row, found.rows, found.compared) == (6, 11, name == "same-checkpoint")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_script_alone_names_the_wrong_field(case, tmp_path):
    for name, text in files(case).items():
        (tmp_path / name).write_text(text)
    flags = [f"--{name}={case[name]}" for name in ("gpu", "boot", "handover")]
    flags += [f"--key={(FOLDER / name).with_suffix('.vkey')}" for name in case["keys"]]
    held = [f"--checkpoint={tmp_path / 'checkpoint'}"] if "checkpoint" in case["files"] else []
    held += ["--closing"] if case["closing"] else []
    command = [sys.executable, "-I", SCRIPT, tmp_path, *flags, *held]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if case["wrong"]:
        assert run.returncode == 1
        assert run.stderr.startswith(f"not verified: {case['wrong']}: ")
    else:
        assert (run.returncode, run.stderr) == (0, "")
        claim = '"letThrough": 0' if case["closing"] else "Clear (NIST SP 800-88r2) of 85000000000 of 85500000000 bytes"
        assert claim in run.stdout


def test_the_script_takes_a_line_of_the_log(tmp_path):
    log = tmp_path / "log"
    log.write_text(json.dumps({"checkpoint": (FOLDER / "same-checkpoint" / "checkpoint").read_text()}))
    command = [sys.executable, "-I", str(SCRIPT), str(FOLDER / "right"), f"--handover={CASES['right']['handover']}"]
    command += [f"--key={FOLDER / 'node.pem'}", f"--checkpoint={log}"]
    run = subprocess.run(command, capture_output=True, check=True)
    assert b"your checkpoint is the same" in run.stdout
    assert b"not covered: 500000000 bytes, " in run.stdout


def test_the_script_names_a_file_that_is_missing(tmp_path):
    command = [sys.executable, "-I", str(SCRIPT), str(FOLDER / "right"), f"--key={tmp_path / 'absent.pem'}"]
    run = subprocess.run(command, capture_output=True, check=False)
    assert (run.returncode, b"absent.pem" in run.stderr) == (2, True)


@pytest.fixture(scope="module")
def script():
    """The script in the documentation, as a module."""
    return vectors.receipts_script()


def test_the_script_is_short_and_shares_no_code(script):
    lines = SCRIPT.read_text().splitlines()
    assert len(lines) <= 213  # for two kinds of documents
    allowed = {"cryptography", "__future__", *sys.stdlib_module_names}
    assert {line.split()[1].split(".")[0] for line in lines if re.match(r"(from|import) ", line)} <= allowed
    for form in (key.public_pem(NODE.public_key), key.vkey(NODE.public_key, "autoclave/a")):
        assert script.read_key(form) == NODE.public_key


def test_an_altered_byte_of_a_proof_is_found_by_both(script):
    envelope, proof = RIGHT["receipt.dsse.json"], RIGHT["receipt.tlog-proof"]
    base64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    for place, letter in enumerate(proof):  # the last bits of a line may mean nothing: the first one is turned
        other = base64[base64.index(letter) ^ 32] if letter in base64 else "A"
        altered = proof[:place] + other + proof[place + 1 :]
        with pytest.raises(ReceiptError):
            verification.logged(envelope, altered, [NODE.public_key])
        with pytest.raises((ValueError, LookupError)):
            script.check_log(altered, envelope.encode(), [NODE.public_key], [])


def test_a_receipt_and_its_proof_belong_together():
    other = dsse.envelope(b"{}", NODE)
    with pytest.raises(ReceiptError, match="the log does not contain it"):
        verification.logged(other, RIGHT["receipt.tlog-proof"], [NODE.public_key])


@pytest.mark.parametrize("payload", ['{"predicate": {}}', '{"predicate": []}', '{"subject": 1}', "{}"])
def test_a_signed_document_that_is_no_receipt_is_refused(payload):
    types = {"_type": "https://in-toto.io/Statement/v1", "predicateType": "tag:autoclave.internal,2026:receipts/v1"}
    with pytest.raises(ReceiptError, match=r"field (device|predicate)"):
        verification.statement(
            dsse.envelope(json.dumps(types | json.loads(payload)).encode(), NODE), [NODE.public_key], Expected()
        )
    with pytest.raises(ReceiptError, match="not a receipt of version 1"):
        verification.statement(dsse.envelope(payload.encode(), NODE), [NODE.public_key], Expected())


def test_the_key_of_another_node_verifies_nothing():
    with pytest.raises(ReceiptError, match="signature"):
        verification.statement(RIGHT["receipt.dsse.json"], [OTHER.public_key], Expected())
    with pytest.raises(ReceiptError, match="not signed"):
        verification.logged(RIGHT["receipt.dsse.json"], RIGHT["receipt.tlog-proof"], [OTHER.public_key])


@pytest.mark.parametrize(("name", "verdict"), [("right", "right\n"), ("not-in-the-log", "wrong: ")])
def test_the_libraries_of_go_judge_our_proofs(name, verdict):
    """golang.org/x/mod: the readers of notes and of transparency logs that every Go program uses."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    offline = {"GOFLAGS": "-mod=readonly", "GOPROXY": "off", "HOME": str(home)}
    proof, vkey = FOLDER / name / "receipt.tlog-proof", (FOLDER / "node.vkey").read_text().strip()
    command = ["go", "run", "./tlogjudge", vkey, FOLDER / "right" / "receipt.dsse.json", proof]
    run = subprocess.run(command, cwd=JUDGE, env=os.environ | offline, capture_output=True, text=True, check=False)
    if "module lookup disabled" in run.stderr or "cannot find module" in run.stderr:
        pytest.skip("Go's modules are not here: make node downloads them")
    assert run.stdout.startswith(verdict), run.stderr
