"""The policy in force outlives everything that makes a reload fail."""

from __future__ import annotations

import errno
import resource

import pytest

from ground import private_files
from ground.documents.faults import DocumentError
from policies.policy_model import Mode
from policies.values import FenceMode
from scrubber.node import clock
from scrubber.policy import ActivePolicy

RULES = "name: a\nrules: [{name: b, match: {}, policy: {fence: {mode: refuse}}}]\n"
OBSERVES, BROKEN = "name: mine\ndefaults: {mode: observe}\n", "name: mine\ndefaults: {mode: obsrve}\n"


@pytest.mark.parametrize("shipped", [True, False], ids=["a shipped policy", "a file"])
def test_a_reload_without_free_files_keeps_the_policy(tmp_path, shipped):
    file = tmp_path / "policy.yaml"
    file.write_text("name: mine\n")
    active = ActivePolicy("strict" if shipped else str(file))
    name, limits = active.name, resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        changed = active.reload()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (changed, active.name) == (False, name)
    assert "Too many open files" in active.fault
    assert not active.reload()
    assert active.fault == ""


@pytest.mark.parametrize("policy", ["strict", RULES], ids=["a shipped policy", "a file with rules"])
def test_a_service_may_have_another_fence_than_its_policy(file, policy):
    if policy == RULES:
        file.write_text(policy)
    active = ActivePolicy(str(file) if policy == RULES else policy, fence=FenceMode.HOLD)
    for _ in range(2):
        assert {it.fence_mode for it in active._in_force.policies.policies} == {FenceMode.HOLD}
        active.reload()


def test_the_last_policy_has_the_fence_of_the_service_too(file, kept):
    file.write_text(RULES)
    ActivePolicy(str(file), kept).keep()
    file.write_text(BROKEN)
    assert (
        ActivePolicy(str(file), kept, FenceMode.WATCH)._in_force.policies.rules[0].policy.fence_mode is FenceMode.WATCH
    )


@pytest.mark.parametrize(("said", "does"), [("hold", "watch"), ("refuse", "watch"), ("off", "off")])
def test_who_only_observes_keeps_none_off(file, said, does):
    file.write_text(f"name: a\ndefaults: {{mode: observe, fence: {{mode: '{said}'}}}}\n")
    assert ActivePolicy(str(file)).defaults.fence_mode.value == does


@pytest.fixture
def file(tmp_path):
    return tmp_path / "policy.yaml"


@pytest.fixture
def kept(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder / "last-policy.yaml"


def test_a_start_with_faults_keeps_the_last_good_policy(file, kept):
    file.write_text(OBSERVES)
    ActivePolicy(str(file), kept).keep()
    for now in (BROKEN, None):
        file.unlink() if now is None else file.write_text(now)
        active = ActivePolicy(str(file), kept)
        assert active.defaults.mode is Mode.OBSERVE
        assert "in force: mine, of " in active.fault
        active.keep()
        assert not active.reload()
        assert "in force: mine, of " in active.fault, "as long as it is"
    file.write_text("name: mine\n")
    assert active.reload()
    assert (active.defaults.mode, active.fault) == (Mode.ENFORCE, "")


def test_a_policy_in_force_is_kept_already(file, kept):
    """A service that is killed as soon as it shows the new policy does not go back to the one before."""
    file.write_text(OBSERVES)
    active = ActivePolicy(str(file), kept)
    active.keep()
    file.write_text("name: mine\n")
    assert active.reload()
    file.write_text(BROKEN)
    assert ActivePolicy(str(file), kept).defaults.mode is Mode.ENFORCE


def test_only_another_policy_has_a_time(file, kept):
    """Attempts before it tell nothing of who is exempt now."""
    file.write_text(OBSERVES)
    active = ActivePolicy(str(file), kept)
    for text in (OBSERVES, f"# the same\n{OBSERVES}", BROKEN):
        file.write_text(text)
        assert not active.reload()
        assert active.changed == 0.0
    file.write_text("name: mine\n")
    before = clock.now().wall
    assert active.reload()
    assert before <= active.changed <= clock.now().wall


def test_while_an_older_policy_stays_no_other_comes_into_force(file, kept):
    file.write_text(OBSERVES)
    active = ActivePolicy(str(file), kept)
    kept.mkdir()  # it can be neither replaced nor removed
    active.keep()
    assert (f"cannot replace the last policy {kept}, nor remove it" in active.fault, active.unread) == (True, True)
    file.write_text("name: mine\n")
    assert not active.reload()
    assert active.defaults.mode is Mode.OBSERVE
    kept.rmdir()
    assert active.reload()
    assert (active.defaults.mode, active.fault, active.not_kept) == (Mode.ENFORCE, "", "")


@pytest.mark.parametrize("earlier", [None, BROKEN, "link"])
def test_a_first_start_refuses_a_policy_with_faults(file, kept, earlier):
    """And so does a start whose kept policy is not ours, or has faults itself."""
    file.write_text(BROKEN)
    if earlier == "link":
        (kept.parent / "elsewhere").write_text(OBSERVES)
        kept.symlink_to("elsewhere")
    elif earlier is not None:
        kept.write_text(f"# {file}\n{earlier}")
    with pytest.raises(DocumentError, match=r"policy[.]yaml:2"):
        ActivePolicy(str(file), kept)


def test_the_policy_of_another_file_does_not_come_back(file, kept):
    """It may have been replaced months ago, by a shipped policy or by another file."""
    file.write_text(OBSERVES)
    ActivePolicy(str(file), kept).keep()
    other = file.with_name("other.yaml")
    with pytest.raises(DocumentError):
        ActivePolicy(str(other), kept)
    ActivePolicy("default", kept).keep()
    file.write_text(BROKEN)
    with pytest.raises(DocumentError):
        ActivePolicy(str(file), kept)


def test_a_policy_that_cannot_be_kept_replaces_the_kept_one(file, kept, monkeypatch):
    file.write_text(OBSERVES)
    active = ActivePolicy(str(file), kept)
    active.keep()
    file.write_text("name: mine\n")
    with monkeypatch.context() as patch:
        patch.setattr(private_files, "replace", _full)
        assert active.reload()
    assert "No space left" in active.not_kept
    file.write_text(BROKEN)
    with pytest.raises(DocumentError):
        ActivePolicy(str(file), kept)


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
