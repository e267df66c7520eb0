"""A whole service with the fence: the ledger says who opened a GPU that was not given to him, also to later lives."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import groups
from scrubber.devices.simulated import layout, loops
from tests.control_groups import group, made_group, run
from tests.live import Service

__all__ = ["group"]  # a fixture

POLICY = "name: quick\ndefaults: {paths: {first_look: fast}, clear: {passes: zero}, fence: {mode: %s}}\n"
TRIES = """
try:
    os.close(os.open(sys.argv[1], os.O_RDONLY))
except PermissionError:
    pass
"""
UID = "6f1f8b8e-6d44-4f0c-9d0a-7f5f7f6a1c11"
OPENED = f'opened by pod team/x ({UID}), last by "NAME" (pid N), while somebody else had it; it asked'
REFUSED = f'refused: pod team/x ({UID}), last by "NAME" (pid N), asked'


@pytest.fixture
def service(group: Path, short_tmp: Path, mode: str) -> Iterator[Service]:
    """A GPU that a job has, with the fence below a group of the test's own."""
    if not loops.can_attach(2**20):
        pytest.skip("takes root, and loop devices")
    (short_tmp / "quick.yaml").write_text(POLICY % mode)
    service = Service(short_tmp, 1, "--cgroup-root", group, "--policy", short_tmp / "quick.yaml")
    service.settled(0, "clean")
    job = made_group(group / "job")
    assert said(service, "acquire", 0, "--owner", "job 7", "--cgroup", job)
    yield service
    service.kill()
    for place in layout.places(service.simulated_dir):
        layout.remove_node(place)


def said(service: Service, *verb: object) -> str:
    """What a command prints."""
    with service.popen(*verb, stdout=subprocess.PIPE) as process:
        out, _ = process.communicate()
    assert process.returncode == 0
    return str(out)


@pytest.mark.parametrize(("mode", "sentence"), [("watch", OPENED), ("refuse", REFUSED), ("hold", REFUSED)])
def test_the_ledger_names_who_opened_it_also_after_a_kill(service: Service, group: Path, sentence: str) -> None:
    pod = service.root / "pods" / f"team_x_{UID}"
    pod.mkdir(parents=True)
    run(groups.of_container(group, UID), TRIES, str(service.simulated_dir / "gpu0/memory"))
    service.hear("while somebody else had it")
    warnings = said(service, "history", 0, "--warnings", "-o", "json")
    [row] = json.loads(warnings)["items"]
    words = re.sub(r'"[^"]+" \(pid \d+\)', '"NAME" (pid N)', row["text"])
    assert row["kind"] == "open-attempted"
    assert words.startswith(f"{sentence} the kernel"), words
    pod.rmdir()
    service.kill()
    service.start()
    explained = said(service, "explain", 0)
    refused = "none" if sentence is OPENED else "1"
    assert re.search(rf"^asked .*team/x\): at least \d open attempts?, {refused} refused", explained, re.MULTILINE)
    assert row["text"] in explained
    assert said(service, "history", 0, "--warnings", "-o", "json") == warnings
