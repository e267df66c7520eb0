"""A closing receipt says of others what they did, also if the service or the fence was away meanwhile."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoclave.cli import DONE, SIMULATED, verified_receipts
from autoclave.cli.output.statement_words import CLOSINGS, RECEIPTS
from policies.policy_model import KNOWN_UNITS, Policy
from scrubber.devices.simulated import layout, loops
from scrubber.fence.kernel import fence
from tests.control_groups import group, made_group, run
from tests.live import Service
from tests.receipts.vectors import receipts_script

__all__ = ["group"]  # a fixture

POLICY = "name: quick\ndefaults: {paths: {first_look: fast}, clear: {passes: zero}, fence: {mode: %s}}\n"
NAMES = [f"namespace {name}" for name in Policy().evict.operator_namespaces]
NAMES += [f"unit {unit}" for unit in (*KNOWN_UNITS, "z.service", "a.service")]
EXEMPT = "".join(f"{line}\n" for line in sorted(NAMES))
OPENS = """
for _ in range(int(sys.argv[2])):
    try:
        os.close(os.open(sys.argv[1], os.O_RDONLY))
    except PermissionError:
        pass
"""


@pytest.fixture
def mode() -> str:
    """What the fence does with others."""
    return "refuse"


@pytest.fixture
def service(group: Path, short_tmp: Path, mode: str) -> Iterator[Service]:
    """Two clean GPUs, with the fence below a group of the test's own."""
    if not loops.can_attach(2**20):
        pytest.skip("takes root, and loop devices")
    (short_tmp / "quick.yaml").write_text(POLICY % mode)
    exempt = ("--exempt-unit", "z.service", "--exempt-unit", "a.service")
    service = Service(short_tmp, 2, "--cgroup-root", group, "--policy", short_tmp / "quick.yaml", *exempt)
    yield service
    service.kill()
    for place in layout.places(service.simulated_dir):
        layout.remove_node(place)


def opens(service: Service, place: Path, times: int) -> None:
    place.mkdir(exist_ok=True)
    run(place, OPENS, str(service.simulated_dir / "gpu0/memory"), str(times))


def cli(service: Service, *words: object) -> str:
    with service.popen(*words, stdout=subprocess.PIPE) as process:
        said, _ = process.communicate()
    assert process.returncode == DONE, said
    return str(said)


def acquire(service: Service, job: Path) -> None:
    service.settled(0, "clean")
    cli(service, "acquire", 0, "--owner", "job 7", "--cgroup", job)


def closed(service: Service) -> dict[str, Any]:
    """What the closing receipt of the tenancy says that ends now."""
    cli(service, "release", 0, "--owner", "job 7")
    service.settled(0, "clean")
    shown = json.loads(cli(service, "receipt", "show", 0, "--closing", "-o", "json"))
    predicate: dict[str, Any] = shown["statement"]["predicate"]
    return predicate


@pytest.mark.parametrize("mode", ["refuse", "watch"])
def test_it_says_how_often_others_came(service: Service, group: Path, mode: str) -> None:
    service.settled(0, "clean")
    opens(service, group / "foreign", 1)  # before: it counts for nothing
    job = made_group(group / "job")
    acquire(service, job)
    opens(service, job, 5)
    opens(service, group / "foreign", 3)
    said = closed(service)
    twice = 6  # one open that is let through asks twice
    counts = {"refuse": {"letThrough": 0, "refused": 3}, "watch": {"letThrough": twice, "refused": 0}}[mode]
    none = {"ignored": 0, "gaps": 0, "below": f"/{group.relative_to(fence.root())}"[:64]}
    assert said["tenant"] == {"owner": "job 7"}
    exempt = hashlib.sha256(EXEMPT.encode()).hexdigest()[:16]
    assert said["fence"] == {"mode": mode, "exempt": exempt, **counts, **none}
    assert said["untilWiped"] == said["fence"] | {"letThrough": 0, "refused": 0}
    receipt = json.loads(cli(service, "receipt", "show", 0, "-o", "json"))["statement"]["predicate"]["fence"]
    assert receipt["refused"] == (4 if mode == "refuse" else 0), "since the last proof"
    [listed] = json.loads(cli(service, "receipt", "list", 0, "-o", "json"))["items"]
    assert {listed["others_let_through"], listed["others_refused"]} == {*counts.values()}
    assert listed["fence"] == f"{mode}, below /{group.relative_to(fence.root())} only"
    assert len(listed["closing_signature"]) == 16


def test_the_list_says_who_was_refused_until_the_wipe(service: Service, group: Path) -> None:
    acquire(service, made_group(group / "job"))
    cli(service, "simulate", "stall-clears", 0)
    cli(service, "release", 0, "--owner", "job 7")
    service.settled(0, "scrubbing")
    opens(service, group / "foreign", 2)
    cli(service, "simulate", "heal", 0)
    service.settled(0, "clean")
    [listed] = json.loads(cli(service, "receipt", "list", 0, "-o", "json"))["items"]
    assert (listed["others_refused"], listed["others_until_wiped"], listed["others_refused_until_wiped"]) == (0, 0, 2)
    assert "2 refused until it was wiped" in cli(service, "receipt", "list", 0)


def test_it_counts_on_while_the_service_is_away(service: Service, group: Path, short_tmp: Path) -> None:
    job = made_group(group / "job")
    acquire(service, job)
    opens(service, group / "foreign", 1)
    service.kill()
    opens(service, group / "foreign", 2)
    (short_tmp / "quick.yaml").write_text(POLICY % "watch")
    service.start()
    said = closed(service)["fence"]
    assert (said["refused"], said["letThrough"], said["gaps"]) == (3, 0, 0)
    [listed] = json.loads(cli(service, "receipt", "list", 0, "-o", "json"))["items"]
    assert listed["fence"].startswith("refuse, then watch")


def test_a_fence_that_was_taken_away_leaves_a_gap(service: Service, group: Path) -> None:
    job = made_group(group / "job")
    acquire(service, job)
    fence.take_down(group)
    opens(service, group / "foreign", 1)
    service.hear("the fence may have missed somebody")
    assert closed(service)["fence"]["gaps"] == 1
    [missed] = json.loads(cli(service, "history", 0, "--kind", "fence-missed", "-o", "json"))["items"]
    assert missed["text"] == "the fence may have missed somebody: somebody had taken the fence out of the kernel"


def test_a_fence_that_begins_anew_knows_nothing_of_before(service: Service, group: Path) -> None:
    job = made_group(group / "job")
    acquire(service, job)
    service.kill()
    fence.take_down(group)
    opens(service, group / "foreign", 1)
    service.start("the fence may have missed somebody")
    service.kill()
    service.start()  # another start says it no second time
    said = closed(service)["fence"]
    [missed] = json.loads(cli(service, "history", 0, "--kind", "fence-missed", "-o", "json"))["items"]
    assert missed["text"].endswith("the fence was put up again meanwhile, or the node restarted")
    assert said == {
        "mode": "none",
        "why": "the fence was put up again meanwhile, or the node restarted",
    }


def test_a_gpu_without_a_named_group_was_open_to_all(service: Service) -> None:
    service.settled(0, "clean")
    cli(service, "acquire", 0, "--owner", "job 7")
    assert closed(service)["fence"]["openToAll"] is True


@pytest.mark.parametrize("mode", ["off"])
def test_without_a_fence_it_says_so(service: Service, group: Path) -> None:
    acquire(service, made_group(group / "job"))
    assert closed(service)["fence"]["mode"] == "none"


def test_both_verifiers_take_what_was_exported(service: Service, group: Path, capfd, tmp_path: Path) -> None:
    acquire(service, made_group(group / "job"))
    state, out, node = service.root / "state", tmp_path / "out", tmp_path / "node.pem"
    node.write_text(cli(service, "receipt", "key", "--state-dir", state))
    [given] = cli(service, "receipt", "export", 0, out, "--state-dir", state).splitlines()
    opens(service, group / "foreign", 3)
    closed(service)
    [folder] = cli(service, "receipt", "export", 0, out, "--closing", "--state-dir", state).splitlines()
    assert folder == given, "it is the hand-over that the tenant knows"
    assert verified_receipts.verify(Path(folder), ((node,), (), ()), ("", "", ""), "text", CLOSINGS) == SIMULATED
    said = capfd.readouterr().out
    assert "0 open attempts let through, 3 refused (fence: refuse)" in said
    assert "hand-over   " + Path(folder).name in said
    with pytest.raises(SystemExit, match=str(SIMULATED)):
        receipts_script().main([folder, f"--key={node}", "--closing"])
    assert '"refused": 3' in capfd.readouterr().out
    document = Path(folder) / CLOSINGS.files[0]
    assert verified_receipts.verify(document, ((node,), (), ()), ("", "", ""), "text", RECEIPTS) == 1
    assert "this is not a receipt of version 1" in capfd.readouterr().err
