"""The demo is a gate of its own: it must hold, leave nothing behind, and be able to fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from demo import __main__ as demo
from scrubber.devices.simulated import drills
from tests.patience import WITHIN


def test_every_promise_holds_and_nothing_is_left_behind(short_tmp: Path) -> None:
    """Side by side: a story mostly waits."""
    words, environment = [sys.executable, "-m", "demo", "--json"], {**os.environ, "TMPDIR": str(short_tmp)}
    stories = {
        promises: subprocess.Popen([*words, *flags], stdout=subprocess.PIPE, text=True, env=environment)
        for promises, flags in {32: [], 35: ["--behind"], 31: ["--dra"]}.items()
    }
    try:
        for promises, story in stories.items():
            report = json.loads(story.communicate(timeout=WITHIN)[0])
            assert [check["line"] for check in report["checks"] if not check["held"]] == []
            assert (story.returncode, report["passed"], len(report["checks"])) == (0, True, promises)
    finally:
        for story in stories.values():
            story.terminate()
    assert list(short_tmp.iterdir()) == []


def test_a_gpu_that_is_not_overwritten_breaks_the_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sabotage: the clear that is to be killed halfway is made to skip its work from then on."""

    def heal_badly(root: Path, uuid: str) -> None:
        heal(root, uuid)
        drills.skip_clears(root, uuid)

    heal = drills.heal
    monkeypatch.setattr(drills, "heal", heal_badly)
    result = CliRunner().invoke(demo.command, ["--json"], standalone_mode=False)
    broken = [check["line"] for check in json.loads(result.stdout)["checks"] if not check["held"]]
    assert result.return_value == 1
    assert any("GPU 2 is scrubbed again" in line for line in broken)


def test_fewer_gpus_than_the_story_needs_are_refused() -> None:
    result = CliRunner().invoke(demo.command, ["--gpus", "2"])
    assert result.exit_code == 2
    assert "3<=x<=64" in result.output
