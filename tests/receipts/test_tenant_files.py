"""What a tenant finds in its container: the receipt of its hand-over, whole, and nothing of anybody else."""

from __future__ import annotations

import base64
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from asyncinotify import Inotify, Mask

from scrubber.core import events as ev
from scrubber.core.model import Owner
from scrubber.core.record import Record
from scrubber.receipts.tenant_files import ENVELOPE, PROOF, TenantFiles
from tests.core import lives
from tests.core.lives import NOW, live
from tests.small_disk import files_of_at_most

SECRET = b"s" * 32
TLOG = "c2sp.org/tlog-proof@v1\n"
GONE = ev.Released("its pod is gone")
AGAIN = ev.Released("a container of the pod starts again", restart=True)
STARTS = ev.PutInUse(Owner(lives.A, NOW, seen=True))


def signed(record: Record) -> str:
    """An envelope about the newest receipt, as far as the files depend on its content."""
    subjects = [
        {"name": name, "digest": {"sha256": it}} for name, it in (("x", "0"), ("receipt", record.scrubs.last_receipt))
    ]
    payload = json.dumps({"subject": subjects, "predicate": {"receipt": "x"}})
    return json.dumps({"payload": base64.b64encode(payload.encode()).decode(), "signatures": []})


class Life:
    """One device, whose directories follow its rows."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = TenantFiles(directory, SECRET)
        self.files.reconcile(())
        self.record = lives.UNKNOWN
        self.files.changed(None, self.record, "", "")

    def has(self, *events: ev.Event) -> Path:
        """The directory of the present hand-over after these events."""
        for event in events:
            before, self.record = self.record, live(self.record, event)
            passed = isinstance(event, ev.ScrubPassed)
            self.files.changed(before, self.record, signed(self.record) if passed else "", TLOG if passed else "")
        return self.files.path(self.record)

    def is_proven(self) -> Path:
        """The same after a scrub that passed."""
        self.has(ev.ScrubStarted(lives.job()))
        return self.has(lives.passed(self.record))

    def is_granted(self) -> Path:
        """The same after a grant."""
        return self.has(ev.Granted(lives.grant(self.record)))

    def is_dir_of(self, folder: Path, names: list[str]) -> bool:
        """Whether the directory exists, with these files."""
        return sorted(path.name for path in folder.iterdir()) == names

    def content(self) -> list[str]:
        """The names of the files in all directories."""
        return sorted(path.name for path in self.directory.glob("*/*"))


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path / "receipts")


def test_a_tenant_has_its_receipt_until_its_tenancy_ends(life: Life) -> None:
    folder = life.is_proven()
    text = signed(life.record)
    for event in (None, ev.Granted(lives.grant(life.record)), STARTS):
        assert life.has(*([event] if event else [])) == folder
        assert (folder / ENVELOPE).read_text() == text
        assert (folder / PROOF).read_text() == TLOG
    life.has(GONE)
    assert not folder.exists()
    assert life.content() == []


def test_each_tenancy_has_another_directory_that_is_there_before(life: Life) -> None:
    first = life.is_proven()
    life.is_granted()
    asked_for_while_in_use = life.files.path_if_requested(life.record)
    assert asked_for_while_in_use == first  # no container has started: the kubelet asks for another one of the pod
    life.has(STARTS)
    following = life.files.path_if_requested(life.record)
    assert following != first
    assert following.is_dir()
    assert life.has(GONE) == following
    assert life.is_proven() == following
    assert (following / ENVELOPE).exists()


REBOOT = ev.Distrusted("a reboot", lives.REBOOTED)


def test_a_container_that_starts_again_finds_its_directory(life: Life) -> None:
    folder = life.is_proven()
    life.is_granted()
    life.has(STARTS)
    assert life.has(AGAIN) == folder
    assert folder.is_dir()
    assert life.content() == []  # the proof has ended


@pytest.mark.parametrize("deferred", [False, True])
def test_a_pod_deleted_before_its_restart_leaves_no_directory(life: Life, deferred: bool) -> None:  # noqa: FBT001 - a parameter
    folder = life.is_proven()
    life.is_granted()
    life.has(STARTS, AGAIN)
    following = life.files.path_if_requested(life.record)
    life.is_proven()
    if deferred:  # until its start
        life.has(ev.Granted(replace(lives.grant(life.record), at_start=True)))
        assert life.has(ev.PutInUse(Owner(lives.B, NOW, seen=True))) == following != folder
    else:
        assert life.is_granted() == following != folder
    assert not folder.exists()
    assert life.is_dir_of(following, [])  # the receipt names the other hand-over


@pytest.mark.parametrize(
    "events", [(REBOOT,), (REBOOT, ev.PutInUse(Owner(lives.A, NOW, seen=True, unannounced=True))), (REBOOT, STARTS)]
)
def test_a_reboot_keeps_the_directory_empty_under_a_new_id(life: Life, events: tuple[ev.Event, ...]) -> None:
    """A container that starts again has its mount. It has no receipt: its tenancy has ended."""
    folder = life.is_proven()
    life.is_granted()
    life.has(STARTS)
    assert life.has(*events) != folder
    assert life.is_dir_of(folder, [])
    life.files.reconcile([life.record])
    assert life.is_dir_of(folder, [])
    if life.record.tenancy.owner is None:
        assert life.is_proven() != folder
        life.has(ev.Granted(replace(lives.grant(life.record), at_start=True)), STARTS)
    if life.record.tenancy.owner is not None and life.record.tenancy.owner.unannounced:
        life.has(ev.PutInUse(replace(life.record.tenancy.owner, unannounced=False)))
    life.has(REBOOT)
    assert life.is_dir_of(folder, [])
    life.is_proven()
    life.is_granted()
    assert not folder.exists()


def test_a_tenant_that_ends_after_a_reboot_leaves_no_directory(life: Life) -> None:
    folder = life.is_proven()
    life.is_granted()
    life.has(STARTS, REBOOT, STARTS, GONE)
    assert not folder.exists()


def test_a_grant_without_a_start_keeps_its_directory(life: Life) -> None:
    folder = life.is_proven()
    life.is_granted()
    assert life.has(ev.Released("its proof ended before a container started on it")) == folder
    assert life.is_proven() == folder
    assert (folder / ENVELOPE).read_text() == signed(life.record)


ENDS = [
    ev.Soiled("it was used without a grant", (lives.FOREIGN,)),
    ev.Distrusted("a reload", lives.RELOADED),
    ev.GrantedUnproven(lives.grant(lives.CLEAN, proven=False), "observe"),
    ev.ScrubStarted(lives.job(name="job-2")),
    ev.Quarantined(lives.quarantine()),
]


@pytest.mark.parametrize("event", ENDS, ids=lambda event: type(event).__name__)
def test_the_files_go_when_the_proof_ends_without_a_tenant(life: Life, event: ev.Event) -> None:
    folder = life.is_proven()
    assert life.has(event) == folder
    assert life.content() == []


def test_a_receipt_without_a_signature_leaves_no_file(life: Life) -> None:
    life.has(ev.ScrubStarted(lives.job()))
    before, after = life.record, live(life.record, lives.passed(life.record))
    life.files.changed(before, after, "", "")
    assert life.content() == []


def test_only_the_service_lists_directories_and_changes_files(life: Life) -> None:
    folder = life.is_proven()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (life.directory, folder, *folder.iterdir())}
    assert modes == {life.directory: 0o711, folder: 0o755, folder / ENVELOPE: 0o644, folder / PROOF: 0o644}


@pytest.mark.parametrize(("proof", "left"), [("p" * 20, []), ("p", [PROOF])])
def test_a_reader_sees_whole_files_only(life: Life, proof: str, left: list[str]) -> None:
    life.has(ev.ScrubStarted(lives.job()))
    before, after = life.record, live(life.record, lives.passed(life.record))
    with structlog.testing.capture_logs() as logs, files_of_at_most(10):
        life.files.changed(before, after, "e" * 20, proof)
    assert life.content() == left
    assert [path for path in life.directory.iterdir() if path.is_file()] == []
    assert [line["error"] for line in logs] == ["File too large"]


def test_a_container_sees_no_part_of_a_file(life: Life) -> None:
    folder = life.has(ev.ScrubStarted(lives.job()))
    with Inotify() as inotify:
        inotify.add_watch(folder, Mask.CREATE | Mask.MODIFY | Mask.MOVED_TO | Mask.CLOSE_WRITE)
        life.has(lives.passed(life.record))
        seen = [inotify.sync_get() for _ in (PROOF, ENVELOPE)]
    assert [event and (str(event.name), event.mask) for event in seen] == [
        (PROOF, Mask.MOVED_TO),
        (ENVELOPE, Mask.MOVED_TO),
    ]


def test_a_planted_directory_or_file_is_not_used(life: Life, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / ENVELOPE).write_text("not ours")
    folder = life.files.path(life.record)
    folder.rmdir()
    folder.symlink_to(elsewhere)
    with structlog.testing.capture_logs() as logs:
        life.is_proven()
        life.files.reconcile([life.record])
    assert [path.read_text() for path in elsewhere.iterdir()] == ["not ours"]
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
    assert {line["device"] for line in logs} == {lives.DEVICE.uuid}
    assert not any(life.files.handover(life.record) in str(line) for line in logs)


def test_a_start_makes_missing_and_removes_surplus_directories(life: Life, tmp_path: Path) -> None:
    folder = life.is_proven()
    following = life.files.path(lives.but(life.record, number=life.record.tenancy.number + 1))
    following.rmdir()
    (life.directory / "0123").mkdir()
    (life.directory / "0123" / ENVELOPE).write_text("of a tenancy that has ended")
    (life.directory / f".{ENVELOPE}.17.17").write_text("of a writer that was killed")
    (life.directory / "link").symlink_to(tmp_path)
    TenantFiles(life.directory, SECRET).reconcile([life.record])
    assert sorted(life.directory.iterdir()) == sorted([folder, following])
    assert life.content() == [ENVELOPE, PROOF]
    assert tmp_path.is_dir()


@pytest.mark.parametrize("till", ["clean", "granted", "in use"])
def test_a_start_keeps_the_receipt_that_still_counts(life: Life, till: str) -> None:
    folder = life.is_proven()
    if till != "clean":
        life.is_granted()
    if till == "in use":
        life.has(STARTS)
    life.files.reconcile([life.record])
    assert (folder / ENVELOPE).read_text() == signed(life.record)


def _cut_off(folder: Path) -> None:
    (folder / ENVELOPE).unlink()
    (folder / ENVELOPE).write_text('{"payload": "eyJz')


def _of_an_older_receipt(folder: Path) -> None:
    (folder / ENVELOPE).unlink()
    (folder / ENVELOPE).write_text(signed(lives.but(lives.CLEAN, last_receipt="0000")))


def _a_link(folder: Path) -> None:
    (folder / ENVELOPE).unlink()
    (folder / ENVELOPE).symlink_to("/etc/hostname")


def _nested(folder: Path) -> None:
    (folder / ENVELOPE).unlink()
    (folder / ENVELOPE).write_text('{"payload":' * 25_000)


@pytest.mark.parametrize("damage", [_cut_off, _nested, _of_an_older_receipt, _a_link])
def test_a_start_removes_files_of_another_receipt(life: Life, damage) -> None:
    damage(life.is_proven())
    life.files.reconcile([life.record])
    assert life.content() == []


def test_a_start_removes_the_files_of_an_ended_proof(life: Life) -> None:
    life.is_proven()
    life.files.reconcile([live(life.record, ev.Distrusted("a reload", lives.RELOADED))])
    assert life.content() == []


def test_an_id_survives_a_restart_and_needs_the_secret(life: Life, tmp_path: Path) -> None:
    ids = {TenantFiles(tmp_path, secret).handover(lives.CLEAN) for secret in (SECRET, SECRET, b"t" * 32)}
    other = replace(lives.CLEAN, device=replace(lives.DEVICE, uuid="GPU-2"))
    ids.add(life.files.handover(other))
    assert len(ids) == 3
    assert all(len(it) == 24 and int(it, 16) for it in ids)
