"""``autoclave receipt list`` of a ledger's file: which hand-overs are in the list, and what is said of the others."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from autoclave.cli import handover_table, signed_receipts
from autoclave.cli.output.statement_words import CLOSINGS, RECEIPTS
from scrub_api.views import HistoryEntry
from scrubber.core import events as ev
from scrubber.core import states
from scrubber.core.events import LedgerEntry
from scrubber.core.guarded import UNKNOWN, EndedTenancy
from scrubber.core.model import Job, Moment, Owner, Receipt, ScrubPath, Trigger
from scrubber.core.tenancies import TenancyRow
from scrubber.ledger import database, ledger_rows, opening, reading, tree
from scrubber.ledger.compaction import Retention
from scrubber.ledger.ledger_files import LedgerPaths
from scrubber.receipts import key, note
from scrubber.receipts.note import Checkpoint
from tests.core import lives
from tests.receipts.signing import ENDED, WordSigner, closed, sealed

DAY = 86_400.0
SIMULATED = replace(lives.DEVICE, model="Simulated GPU", simulated=True)


def ago(days: float) -> Moment:
    return Moment(time.time() - days * DAY, 0.0)


@pytest.fixture
def ledger(tmp_path):
    """Write a ledger of GPU 0 with these tenancies: tenant, and how many days ago it began, ended and was wiped.

    ``index``: of the GPU since the last one. ``forgets``: what described the GPU before was dropped. ``seal``: what
    each receipt becomes.
    """

    def write(
        *tenancies: tuple[str, float, float | None, float | None],
        index: int | None = None,
        folder: str = "",
        forgets: bool = False,
        seal: Callable[[Receipt], Receipt] = lambda receipt: receipt,
    ) -> Path:
        path: Path = tmp_path / folder / "ledger.db"
        path.parent.mkdir(exist_ok=True)
        store, _ = opening.open_or_set_aside(path, lives.NOW)
        record = lives.UNKNOWN

        def add(days: float, event: ev.Event) -> None:
            nonlocal record
            record = lives.live(None if isinstance(event, ev.Discovered) else record, event)
            store.append([LedgerEntry(0, lives.DEVICE.uuid, ago(days), "op", event)])

        def scrub(days: float, job: Job) -> None:
            add(days, ev.ScrubStarted(job))
            passed = lives.passed(record, ago(days))
            add(days, replace(passed, receipt=seal(passed.receipt)))

        add(365, ev.Discovered(lives.DEVICE, lives.HERE))
        scrub(365, lives.job(ScrubPath.SLOW, Trigger.FIRST_LOOK))
        if forgets:
            store.compact(states.replay, 0, lives.NOW, Retention(rows=0))
        for number, (tenant, began, ended, wiped) in enumerate(tenancies):
            if index is not None and number == len(tenancies) - 1:
                add(began, ev.Described(replace(lives.DEVICE, index=index)))
            grant = replace(lives.grant(record), owner=tenant, announced=False, until_release=True)
            add(began, ev.Granted(grant))
            add(began, ev.PutInUse(Owner(tenant, lives.NOW)))
            if ended is not None:
                add(ended, ev.Released("its job has ended"))
            if wiped is not None:
                scrub(wiped, lives.job(name=f"job-{number + 2}"))
        store.close()
        return path

    return write


def tenants(run) -> list[str]:
    assert run.exit_code == 0, run.output
    return [json.loads(line)["tenant"] for line in run.stdout.splitlines()]


def test_only_a_copy_is_listed_whole_without_a_time(autoclave, ledger, tmp_path):
    file = ledger(("old", 100, 99, 98), ("new", 3, 2, 1))
    listed = ("--service-wait", "0s", "receipt", "list", "-o", "jsonl")
    copy = autoclave(*listed, "--file", file)
    assert (tenants(copy), copy.stderr) == (["old", "new"], "")
    live = (*listed, "--run-dir", tmp_path, "--state-dir", tmp_path)
    month = autoclave(*live)
    assert tenants(month) == ["new"]
    assert "earlier hand-overs are not shown: only those since 2" in month.stderr
    for chosen in (autoclave(*live, "--since", "30d"), autoclave(*listed, "--file", file, "--since", "30d")):
        assert (tenants(chosen), "not shown" in chosen.stderr) == (["new"], False)


@pytest.mark.parametrize(
    ("story", "listed"),
    lives.rows(
        ("it went on before and after", ("long", 90, 10, 9), ["long"]),
        ("it goes on, and nothing has happened since", ("job", 90, None, None), ["job"]),
        ("it was wiped later", ("sick", 90, 31, 1), ["sick"]),
        ("it is not wiped yet", ("lost", 90, 80, None), ["lost"]),
        ("it was over", ("old", 90, 80, 79), []),
        ("it began later", ("new", 3, 2, 1), ["new"]),
    ),
)
def test_a_list_since_a_time_has_what_was_not_over(autoclave, ledger, story, listed):
    run = autoclave(
        "receipt", "list", "-o", "jsonl", "--since", "30d", "--file", ledger(("first", 300, 299, 298), story)
    )
    assert tenants(run) == listed


def test_a_long_handover_keeps_its_beginning(autoclave, ledger, monkeypatch):
    """However many rows of open attempts and restarts it has before the time that is asked for."""
    monkeypatch.setattr(handover_table, "EARLIER", 1)
    run = autoclave("receipt", "list", "-o", "jsonl", "--since", "30d", "--file", ledger(("long", 90, 10, 9)))
    assert tenants(run) == ["long"]


@pytest.mark.parametrize(
    ("forgets", "index", "listed"),
    [(False, 7, [0, 7]), (True, 7, [None, 7]), (True, None, [0, 0])],
    ids=["described anew", "described before, but that was dropped", "never described anew"],
)
def test_a_later_description_changes_no_earlier_handover(autoclave, ledger, forgets, index, listed):
    file = ledger(("old", 9, 8, 7), ("new", 3, 2, 1), index=index, forgets=forgets)
    run = autoclave("receipt", "list", "-o", "jsonl", "--file", file)
    assert [json.loads(line)["index"] for line in run.stdout.splitlines()] == listed
    assert autoclave("receipt", "list", "--file", file).exit_code == 0
    for name in (0, 7, "gpu-1", 9):  # an index means the GPUs that had it then, or may have had it
        run = autoclave("receipt", "list", name, "-o", "jsonl", "--file", file)
        of_gpu = [t for t, it in zip(("old", "new"), listed, strict=True) if it in (None, name) or name == "gpu-1"]
        assert ([json.loads(line)["tenant"] for line in run.stdout.splitlines()], run.exit_code) == (
            of_gpu,
            0 if of_gpu else 2,
        )


def test_a_signed_receipt_says_whether_a_gpu_is_simulated(autoclave, ledger):
    """The snapshot describes a GPU whose rows were dropped, and nothing vouches for that."""
    file = ledger(("old", 9, 8, 7), forgets=True, seal=partial(sealed, device=SIMULATED))
    [handover] = autoclave("receipt", "list", "-o", "jsonl", "--file", file).stdout.splitlines()
    found = json.loads(handover)
    assert (found["model"], found["simulated"]) == ("Simulated GPU", True)


def test_a_copied_document_is_not_its_own(autoclave, ledger):
    copied = sealed(lives.proof(lives.CLEAN), device=SIMULATED).envelope
    file = ledger(("old", 9, 8, 7), forgets=True, seal=lambda receipt: replace(receipt, envelope=copied))
    [handover] = autoclave("receipt", "list", "-o", "jsonl", "--file", file).stdout.splitlines()
    found = json.loads(handover)
    assert (found["signature"], found["wipe_signature"]) == ("unknown", "not its own")
    assert (found["model"], found["simulated"]) == (lives.DEVICE.model, False)
    shown = autoclave("receipt", "show", found["wipe"], "--state-dir", file.parent)
    assert (shown.exit_code, "its signed document has another " in shown.stderr) == (2, True)


def test_a_closing_receipt_of_another_tenant_is_not_its_own():
    ended = EndedTenancy(1, "boot-1", lives.later(4), lives.NOW, pod="team/a")
    closed = ev.TenancyClosed(ended, "wipe", UNKNOWN)
    row = TenancyRow(device="GPU-1", began=lives.NOW.wall, ended=ended.ended.wall, closed=closed)
    for pod, signature, others in (("team/a", "unsigned", "not known"), ("team/b", "not its own", "not its own")):
        listed = replace(row, pod=pod)
        assert handover_table._fence(listed)["closing_signature"] == signature
        assert handover_table._others(listed) == others


def until(file: Path, newer: int) -> tuple[object, ...]:
    """The list by a checkpoint that does not count so many rows. A hand-over has five, and ends with its wipe."""
    log, pem = file.with_name("log"), file.with_name("key")
    with reading.consistent_view(LedgerPaths(file)) as connection:
        size = database.tree_of(connection).size - newer
        root = tree.frontier(connection, size).root
    log.write_text(json.dumps({"checkpoint": note.sign(Checkpoint("autoclave/gpu-7", size, root), WordSigner())}))
    pem.write_text(key.public_pem(WordSigner().public_key))
    return "receipt", "list", "-o", "jsonl", "--checkpoint", log, "--key", pem


def vouched(run) -> list[tuple[str, bool]]:
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return [(line["tenant"], line["vouched"]) for line in lines]


@pytest.mark.parametrize(("newer", "old", "new"), [(0, True, True), (1, True, False), (6, False, False)])
def test_a_list_says_which_lines_are_vouched_for(autoclave, ledger, newer, old, new):
    file = ledger(("old", 9, 8, 7), ("new", 3, 2, 1))
    run = autoclave(*until(file, newer), "--file", file)
    assert vouched(run) == [("old", old), ("new", new)]
    assert ("do not vouch for all rows of " in run.stderr) == (not new)
    table = autoclave(*until(file, newer), "-o", "table", "--file", file)
    assert [line.split()[-1] for line in table.stdout.splitlines()] == [
        "VOUCHED",
        *({True: "yes", False: "no"}[each] for each in (old, new)),
    ]


def test_checkpoints_are_compared_with_an_intact_copy_alone(autoclave, ledger):
    file = ledger(("old", 9, 8, 7))
    flags = until(file, 0)
    other = autoclave(*flags, "--file", ledger(("old", 9, 8, 7), folder="other"))
    assert (other.exit_code, other.stdout, "cannot trust the ledger" in other.stderr) == (1, "", True)
    of_node = ("--run-dir", file.parent / "none", "--state-dir", file.parent)
    live = autoclave("--service-wait", "0s", *flags, *of_node)
    assert (live.exit_code, "name it with --file" in live.stderr) == (2, True)
    variables = {"AUTOCLAVE_CHECKPOINT": str(flags[5]), "AUTOCLAVE_KEY": str(flags[7])}
    assert autoclave("--service-wait", "0s", *flags[:4], *of_node, **variables).exit_code == 0, "of another verb"
    copy = autoclave(*flags[:4], "--file", file, AUTOCLAVE_KEY=str(flags[5]))
    assert copy.exit_code == 0, "the key is no key, and is for another verb"
    dropped = ledger(("old", 9, 8, 7), forgets=True, folder="dropped")
    assert (
        "hand-overs may be missing: the evidence is complete" in autoclave(*until(dropped, 0), "--file", dropped).stderr
    )


@pytest.mark.parametrize(
    ("story", "newer", "listed"),
    lives.rows(
        ("its end", [("job", 90, 80, 79)], 3, [("job", False)]),
        ("a later hand-over", [("job", 90, 10, 9), ("no", 85, 84, 83)], 5, [("job", True), ("no", False)]),
        ("none", [("job", 90, 80, 79)], 0, []),
    ),
)
def test_no_row_that_is_dated_back_hides_a_line(autoclave, ledger, monkeypatch, story, newer, listed):
    """Who appends rows without a checkpoint chooses their times."""
    monkeypatch.setattr(handover_table, "EARLIER", 5)
    file = ledger(*story)
    assert vouched(autoclave(*until(file, newer), "--since", "30d", "--file", file)) == listed


def test_a_time_copied_from_the_list_includes_its_line(autoclave, ledger):
    listed = ("receipt", "list", "-o", "jsonl", "--file", ledger(("job", 3, 2, 1)))
    began = json.loads(autoclave(*listed).stdout)["began"]
    assert tenants(autoclave(*listed, "--until", began)) == ["job"]


RECEIPT = lives.proof(lives.CLEAN)
PASSED, CLOSED = ev.ScrubPassed("job", sealed(RECEIPT)), closed()
UNSIGNED = (
    (RECEIPTS, replace(PASSED, receipt=RECEIPT), PASSED),
    (CLOSINGS, replace(CLOSED, envelope=""), CLOSED),
)


def found_row(name, kind, *rows: tuple[str, ev.Event]) -> int:
    """The number of the one row whose document is shown. ``rows``: a device, and what happened to it."""
    entries = [
        HistoryEntry(n, device, 0, 0.0, "", *ledger_rows.encode(event)[:1], "", ledger_rows.encode(event)[1])
        for n, (device, event) in enumerate(rows)
    ]

    async def history(*_: object, **__: object) -> list[HistoryEntry]:
        return entries

    [signed] = asyncio.run(signed_receipts._signed(name, history, kind))
    return signed.row


@pytest.mark.parametrize("device", ["GPU-1", "GPU-2"])
@pytest.mark.parametrize(("kind", "unsigned", "signed"), UNSIGNED, ids=["receipt", "closing"])
def test_an_unsigned_row_hides_no_signed_document(kind, unsigned, signed, device):
    """Without the key, somebody can write it at any time, with the same id."""
    assert found_row(RECEIPT.id, kind, (device, unsigned), ("GPU-1", signed), (device, unsigned)) == 1


def test_the_id_of_a_wipe_finds_one_closing_receipt():
    """A job may call itself by that id, and a later row may name the same wipe."""
    named = replace(closed(replace(ENDED, acquired_by=RECEIPT.id)), receipt="fedcba9876543210")
    other = replace(CLOSED, ended=replace(CLOSED.ended, number=8))
    assert found_row(RECEIPT.id, CLOSINGS, ("GPU-1", CLOSED), ("GPU-1", named), ("GPU-1", other)) == 0
    assert found_row(ENDED.pod, CLOSINGS, ("GPU-1", CLOSED), ("GPU-1", other)) == 1, "the newest one of a tenant"


def test_a_copy_is_read_where_a_service_runs(autoclave, own_service, ledger):
    """It is named by --state-dir alone. Beside --run-dir, that flag is for a service that does not answer."""
    folder = ledger(("of the copy", 3, 2, 1)).parent
    own_service.settled(0, "clean")
    [receipt] = {json.loads(autoclave("receipt", "list", "-o", "jsonl", "--state-dir", folder).stdout)["receipt"]}
    for verb, sentence in (
        (("receipt", "list"), "of the copy"),
        (("history", "--kind", "granted"), " of the copy"),
        (("receipt", "show", receipt), f"cannot use receipt {receipt}: it is not signed"),
    ):
        copy = autoclave(*verb, "--state-dir", folder)
        live = autoclave(*verb, "--state-dir", folder, "--run-dir", own_service.run_dir)
        assert [sentence in run.output for run in (copy, live)] == [True, False], copy.output + live.output


def test_a_copy_says_that_a_damaged_ledger_was_before_it(autoclave, tmp_path):
    """That ledger is not in the copy. A later note says nothing: whoever appends rows could write it."""
    file = tmp_path / "state" / "ledger.db"
    file.parent.mkdir()
    file.write_text("damaged")
    store, _ = opening.open_or_set_aside(file, lives.NOW)
    store.write_note(ledger_rows.BEGUN, lives.NOW, {})
    store.close()
    for each in file.parent.glob("*.corrupt-*"):
        each.unlink()
    run = autoclave("receipt", "list", "--file", file)
    assert (run.exit_code, "earlier hand-overs may be in ledger.db.corrupt-" in run.stderr) == (0, True)


def test_another_name_than_that_of_the_receipts_is_warned_of(autoclave, own_service):
    own_service.settled(0, "clean")
    assert autoclave("acquire", 0).exit_code == 0
    listed = ("receipt", "list", "-o", "csv", "--node-name")
    assert autoclave(*listed, socket.gethostname()).stderr == ""
    assert "not for" in autoclave(*listed, f"{socket.gethostname()}1").stderr
    wrong = autoclave(*listed, "gpu-node-8").stderr
    assert f"receipts of the list are signed for {socket.gethostname()}, not for gpu-node-8 (--node-name)" in wrong
