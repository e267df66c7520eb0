"""The demo is a gate of its own: it must hold, leave nothing behind, and be able to fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from demo import __main__ as demo
from demo import groups, story
from demo.stage import Stage
from demo.standins.endpoint import Endpoint, PluginError
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Pod, PodStatus
from scrubber.devices.simulated import drills
from tests.patience import WITHIN


def test_every_promise_holds_and_nothing_is_left_behind(short_tmp: Path) -> None:
    """Side by side: a story mostly waits."""
    words, environment = [sys.executable, "-m", "demo", "--json"], {**os.environ, "TMPDIR": str(short_tmp)}
    promises = {"": 45, "--behind": 48, "--dra": 40}
    stories = {
        flag: subprocess.Popen([*words, *flag.split()], stdout=subprocess.PIPE, text=True, env=environment)
        for flag in promises
    }
    try:
        for flag, running in stories.items():
            report = json.loads(running.communicate(timeout=WITHIN)[0])
            assert [check["line"] for check in report["checks"] if not check["held"]] == []
            fenced = [
                check["line"] for check in report["checks"] if "opens a GPU that it was not given" in check["act"]
            ]
            wanted = promises[flag] + len(fenced) - 1
            assert (running.returncode, report["passed"], len(report["checks"])) == (0, True, wanted)
            assert len(fenced) == (1 if groups.why_none() else 3), "an ordinary user is told why"
    finally:
        for running in stories.values():
            running.terminate()
    assert list(short_tmp.iterdir()) == []


def test_a_skipped_clear_breaks_the_story_not_a_busy_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clear that is to be killed halfway skips its work from then on.

    Before that, the service does not answer in time when pod B asks, and later pod B's first start is refused.
    """
    stages, heal, admit, prestart = list[Stage](), drills.heal, Kubelet.admit, Endpoint.prestart
    tried = list[str]()

    def heal_badly(root: Path, uuid: str) -> None:
        heal(root, uuid)
        drills.skip_clears(root, uuid)

    async def admit_slowly(kubelet: Kubelet, pod: Pod) -> PodStatus:
        if pod.name != "b" or "admit" in tried:
            return await admit(kubelet, pod)
        tried.append("admit")
        service = stages[0].service.process
        assert service is not None
        service.send_signal(signal.SIGSTOP)
        try:
            return await admit(kubelet, pod)
        finally:
            service.send_signal(signal.SIGCONT)

    async def start_late(endpoint: Endpoint, ids: Sequence[str]) -> None:
        if "admit" in tried and "start" not in tried:
            tried.append("start")
            raise PluginError("rpc error: code = Unavailable desc = the scrub service did not answer in time")
        await prestart(endpoint, ids)

    class ShownStage(Stage):
        def __post_init__(self) -> None:
            super().__post_init__()
            stages.append(self)

    monkeypatch.setattr(story, "Stage", ShownStage)
    monkeypatch.setattr(drills, "heal", heal_badly)
    monkeypatch.setattr(Kubelet, "admit", admit_slowly)
    monkeypatch.setattr(Endpoint, "prestart", start_late)
    result = CliRunner().invoke(demo.command, ["--json"], standalone_mode=False)
    broken = [check["line"] for check in json.loads(result.stdout)["checks"] if not check["held"]]
    assert (result.return_value, tried) == (1, ["admit", "start"])
    assert [line.partition(":")[0] for line in broken] == [
        "GPU 2 is scrubbed again from the start, and ends clean",
        "the demo runs to its end",
    ]


def test_fewer_gpus_than_the_story_needs_are_refused() -> None:
    result = CliRunner().invoke(demo.command, ["--gpus", "2"])
    assert result.exit_code == 2
    assert "3<=x<=64" in result.output
