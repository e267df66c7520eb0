"""``autoclave fence`` over a fence below a control group of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autoclave.cli import NOT_CLEAN, VERBS
from autoclave.cli.verbs.fence import fence as verb
from ground.errors import FatalError
from scrubber.fence.kernel import fence
from scrubber.fence.kernel.fence import Fence
from tests.control_groups import FULL, OPENS, foreign, group, identity, made_group, run, standing

__all__ = ["foreign", "group", "standing"]  # fixtures


@pytest.fixture
def ask(group: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Asks the verb, as if the group of the test were the root of all groups."""
    monkeypatch.setattr(fence, "root", lambda: group)

    def asked(*arguments: str) -> Result:
        return CliRunner().invoke(verb, arguments, standalone_mode=False)

    return asked


@pytest.mark.parametrize(("refuse", "others"), [(True, "refused"), (False, "pods refused")])
def test_the_status_names_devices_and_for_whom_they_are_open(
    ask, group: Path, standing: Fence, foreign: Path, *, refuse: bool, others: str
) -> None:
    dcgm = made_group(group / "dcgm.service")
    standing.set(FULL, {identity(dcgm)}, refuse=refuse, held=() if refuse else {identity(foreign)})
    assert run(foreign, OPENS) == "refused"
    answer = ask("status", "-o", "json")
    document = json.loads(answer.stdout)
    (rule,) = document["items"]
    assert (rule["device"], rule["others"], rule["open_to"]) == ("1:7", others, "/dcgm.service")
    assert rule["attempts"] == rule["refused"] > 0
    assert 0 < document["lease_seconds"] <= 600
    assert "others are refused for" in ask("status").stderr


def test_without_a_lease_others_are_counted(ask, standing: Fence) -> None:
    standing.set(FULL, set(), refuse=True)
    standing.refuse_for(-1)
    answer = ask("status")
    assert "counted" in answer.stdout
    assert "nobody is refused" in answer.stderr


def test_others_are_not_refused_where_all_may_open(ask, standing: Fence, foreign: Path) -> None:
    standing.set(FULL, None, refuse=True)
    assert run(foreign, OPENS) == "opened"
    answer = ask("status", "-o", "json")
    (rule,) = json.loads(answer.stdout)["items"]
    assert (rule["others"], rule["open_to"], rule["refused"]) == ("counted", "all", 0)
    assert rule["attempts"] > 0
    assert "refused" not in ask("status").stderr


def test_the_fence_of_a_trial_is_shown_and_removed(standing: Fence, group: Path) -> None:
    standing.set(FULL, set(), refuse=True)
    at = ("--cgroup-root", str(group))
    assert "1:7" in CliRunner().invoke(verb, ["status", *at], standalone_mode=False).stdout
    assert CliRunner().invoke(verb, ["off", *at], standalone_mode=False).stdout == "the fence is removed\n"
    assert fence.inspect(group) is None


def test_off_removes_the_fence_once(ask, group: Path, standing: Fence, foreign: Path) -> None:
    standing.set(FULL, set(), refuse=True)
    answer = ask("off")
    assert (answer.return_value, answer.stdout) == (0, "the fence is removed\n")
    assert run(foreign, OPENS) == "opened"
    assert ask("off").stdout == f"no fence stood at {group}; nothing to do\n"
    none = ask("status")
    assert (none.return_value, f"no fence stands at {group}, so" in none.stderr) == (NOT_CLEAN, True)


def test_it_takes_root(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for verb_of in ("status", "off"):
        assert isinstance(ask(verb_of).exception, FatalError)


def test_the_verb_is_listed() -> None:
    assert VERBS["fence"][0] == "fence"
