"""``autoclave ledger verify --checkpoint``: which checkpoints are of this ledger, and which tell nothing about it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autoclave.cli.output import human
from scrubber.core import events as ev
from scrubber.core import states
from scrubber.core.events import LedgerEntry
from scrubber.core.model import ScrubPath, Trigger
from scrubber.ledger import ledger_rows, opening
from scrubber.ledger.compaction import Retention
from scrubber.receipts import key, note
from scrubber.receipts.note import Checkpoint
from tests.core import lives
from tests.receipts.signing import WordSigner, sealed

NODE, EARLIER, OTHER = WordSigner("node"), WordSigner("earlier"), WordSigner("other")
OURS, THEIRS = "autoclave/gpu-7", "autoclave/gpu-8"
ROW = LedgerEntry(0, "GPU-1", lives.NOW, "op", ev.Discovered(lives.DEVICE, lives.HERE))


class Ledger:
    """A ledger of node gpu-7, and the log lines of a log store."""

    def __init__(self, folder, autoclave, *rows: LedgerEntry, announced=NODE) -> None:
        self._autoclave, self._folder = autoclave, folder
        self.path = folder / "ledger.db"
        store, _ = opening.open_or_set_aside(self.path, lives.NOW)
        if announced:
            about = {"key": announced.key_id, "public_key": announced.public_key.hex()}
            store.write_note(ledger_rows.KEY, lives.NOW, about)
        store.append([ROW, *rows])
        self.size, self.root = store.head.size, bytes.fromhex(store.head.root)
        store.close()
        for each in (NODE, EARLIER, OTHER):
            (folder / each.word).write_text(key.public_pem(each.public_key))

    def right(self, signer=NODE, origin=OURS) -> str:
        return note.sign(Checkpoint(origin, self.size, self.root), signer)

    def wrong(self, signer=NODE, origin=OURS) -> str:
        return note.sign(Checkpoint(origin, self.size - 1, bytes(32)), signer)

    def verify(self, signers, *checkpoints: str):
        log = self._folder / "log"
        log.write_text("".join(f"{json.dumps({'checkpoint': each})}\n" for each in checkpoints))
        flags = [flag for each in signers for flag in ("--key", self._folder / each.word)]
        run = self._autoclave("ledger", "verify", self.path, *flags, *(("--checkpoint", log) if checkpoints else ()))
        return run.exit_code, run.stdout, run.stderr


@pytest.fixture
def ledger(tmp_path, autoclave):
    return Ledger(tmp_path, autoclave)


@pytest.mark.parametrize("signers", [(NODE, OTHER), (NODE,)])
def test_a_log_of_several_nodes_accuses_none(ledger, signers):
    theirs = ledger.wrong(OTHER, THEIRS), note.sign(Checkpoint(THEIRS, 900, bytes(32)), OTHER)
    code, out, err = ledger.verify(signers, *theirs, ledger.right())
    assert (code, f"of {OURS} vouch for the rows up to {ledger.size}," in out) == (0, True)
    assert err == f"autoclave: the checkpoints of other nodes are left out: {THEIRS}\n"


def test_checkpoints_of_another_node_are_not_compared(ledger):
    code, out, err = ledger.verify([OTHER], ledger.wrong(OTHER, THEIRS))
    assert (code, out) == (2, "")
    assert f"they are of {THEIRS}, and none fits the ledger; give the checkpoints and the key of its node" in err


@pytest.mark.parametrize("origin", [OURS, "autoclave/its-name-before"])
def test_a_key_of_the_ledger_shows_a_second_history(ledger, origin):
    """Also under a name that the ledger does not have: it cannot disown its key."""
    code, _, err = ledger.verify([NODE], ledger.right(), ledger.wrong(NODE, origin))
    assert (code, "there are two histories" in err) == (1, True)


def test_the_node_of_the_receipts_shows_a_second_history(tmp_path, autoclave):
    """Also by a key that the ledger does not name."""
    began = ev.ScrubStarted(lives.job(ScrubPath.SLOW, Trigger.FIRST_LOOK))
    passed = lives.passed(lives.FIRST_LOOK)
    passed = replace(passed, receipt=sealed(passed.receipt, NODE, "gpu-7"))
    rows = (LedgerEntry(0, "GPU-1", lives.NOW, "op", event) for event in (began, passed))
    ledger = Ledger(tmp_path, autoclave, *rows)
    code, out, _ = ledger.verify([OTHER, NODE], ledger.right(OTHER))
    assert (code, "a given key has signed the documents of 1 row\n" in out) == (0, True)
    code, _, err = ledger.verify([OTHER], ledger.right(OTHER))
    assert (code, f"the one in row 5 is by the key {NODE.key_id}, as it says; " in err) == (2, True)
    code, _, err = ledger.verify([EARLIER], ledger.wrong(EARLIER))
    assert (code, "there are two histories" in err) == (1, True)
    code, _, err = ledger.verify([OTHER], ledger.wrong(OTHER, THEIRS))
    assert (code, f"they are of {THEIRS}, and the ledger is of {OURS}" in err) == (2, True)


def test_a_ledger_without_a_name_cannot_disown_a_checkpoint(tmp_path, autoclave):
    ledger = Ledger(tmp_path, autoclave, announced=None)
    assert ledger.verify([OTHER], ledger.wrong(OTHER, THEIRS))[0] == 1


def test_after_a_rotation_both_keys_are_asked_for(ledger):
    log = ledger.right(EARLIER), ledger.right()
    for signers in ([NODE], [EARLIER]):
        code, out, err = ledger.verify(signers, *log)
        assert (code, out, "give both with --key" in err) == (2, "", True)
    assert ledger.verify([NODE, EARLIER], *log)[0] == 0
    code, _, err = ledger.verify([OTHER], ledger.right())
    assert (code, "give both with --key" in err) == (2, True)


def test_a_key_without_a_checkpoint_is_not_enough(ledger):
    code, out, err = ledger.verify([OTHER])
    assert (code, " is intact: " in out) == (0, True)
    assert "without --checkpoint, it is not found that an older copy was put back" in err
    assert ledger.verify([])[2] == ""


def test_a_row_that_a_start_refuses_is_damage(tmp_path, autoclave):
    """The service would set it aside, and its quarantines would be lost."""
    released = LedgerEntry(0, "GPU-2", lives.NOW, "op", ev.Released("its job has ended"))
    code, _, err = Ledger(tmp_path, autoclave, released).verify([])
    assert (code, "cannot replay the ledger: " in err) == (1, True)


@pytest.mark.parametrize("keep", [2, 0], ids=["new", "folded"])
def test_a_document_that_was_copied_is_damage(tmp_path, autoclave, keep):
    passed = lives.passed(lives.FIRST_LOOK)
    another = sealed(replace(passed.receipt, id="0123456789abcdef"))
    copied = replace(passed, receipt=replace(passed.receipt, envelope=another.envelope))
    began = ev.ScrubStarted(lives.job(ScrubPath.SLOW, Trigger.FIRST_LOOK))
    store, _ = opening.open_or_set_aside(tmp_path / "ledger.db", lives.NOW)
    store.append([ROW, *(replace(ROW, event=event) for event in (began, copied))])
    store.compact(states.replay, keep, lives.NOW)
    store.close()
    run = autoclave("ledger", "verify", tmp_path / "ledger.db")
    assert (run.exit_code, "row 4: its signed document has another receipt" in run.stderr) == (1, True)


def test_verify_says_from_when_on_evidence_is_complete(tmp_path, autoclave):
    store, _ = opening.open_or_set_aside(tmp_path / "ledger.db", lives.NOW)
    store.append([ROW])
    store.compact(lambda records, _: records, 0, lives.NOW, Retention(rows=0))
    store.close()
    out = autoclave("ledger", "verify", tmp_path / "ledger.db").stdout
    assert f"its evidence is complete from row 3 on ({human.local(lives.NOW.wall)}); older evidence was dropped" in out


def test_no_time_is_believed_for_which_no_checkpoint_vouches(ledger):
    """Who drops all evidence before an appended row chooses the time of that row."""
    log = ledger.right()
    store, _ = opening.open_or_set_aside(ledger.path, lives.NOW)
    store.compact(states.replay, 0, lives.NOW, Retention(rows=0))
    store.close()
    code, out, _ = ledger.verify([NODE], log)
    assert (code, f"complete from row {ledger.size + 1} on (no checkpoint vouches for its time)" in out) == (0, True)
