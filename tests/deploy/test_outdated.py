"""`make outdated`: what it reads in the locks, and in the pins that stand elsewhere."""

from deploy import base, outdated

OLD = "a==1 \\\n    --hash=sha256:0\nb==1 ; python_full_version < '3.12'\nb==2 ; python_full_version >= '3.12'\nc==1\n"
NEW = "a==2 \\\n    --hash=sha256:1\nb==1 ; python_full_version < '3.12'\nb==3 ; python_full_version >= '3.12'\nd==1\n"


def test_each_package_that_differs_has_one_line():
    old, new = map(outdated.pins, (OLD, NEW))
    assert list(outdated.newer(old, old)) == []
    assert list(outdated.newer(old, new)) == [
        "a: 1 -> 2", "b: 1, 2 -> 1, 3", "c: 1 -> not needed", "d: not there -> 1"
    ]  # fmt: skip


def test_every_pin_outside_of_the_locks_is_asked_for(monkeypatch):
    """The answer is that of another index: the names that are asked for come of the tree."""
    monkeypatch.setattr(
        outdated, "_renewed", lambda: {name: (outdated.ROOT / name).read_text() for name in outdated.LOCKS}
    )
    monkeypatch.setattr("shutil.which", lambda _name: "go")
    monkeypatch.setattr(outdated, "_said", lambda *_command, given="": f"{given}==0" if given else "v0")
    monkeypatch.setattr(base, "write_lock", lambda: "# head\nlibc6 0\n")
    about = [line.partition(": ")[2].split(":")[0] for line in outdated.lines()]
    debian = sorted(outdated.debian(base.LOCK.read_text()))
    assert about == ["cyclonedx-bom", "github.com/rhysd/actionlint", *debian]
