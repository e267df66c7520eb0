"""A whole service with the fence: what it has proven outlives kill -9, unless somebody opens the GPU meanwhile."""

from __future__ import annotations

import os
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
OPENS = "os.close(os.open(sys.argv[1], os.O_RDONLY))"


@pytest.fixture
def mode() -> str:
    """What the fence does with others."""
    return "watch"


@pytest.fixture
def service(group: Path, short_tmp: Path, mode: str) -> Iterator[Service]:
    """Two clean GPUs, with the fence below a group of the test's own."""
    if not loops.can_attach(2**20):
        pytest.skip("takes root, and loop devices")
    (short_tmp / "quick.yaml").write_text(POLICY % mode)
    flags = ("--cgroup-root", group, "--policy", short_tmp / "quick.yaml")
    service = Service(short_tmp, 2, *flags)
    yield service
    service.kill()
    for place in layout.places(service.simulated_dir):
        layout.remove_node(place)


def receipts(service: Service) -> list[str]:
    return [device.receipt.id for device in (service.settled(gpu, "clean") for gpu in range(2)) if device.receipt]


def opened(service: Service, group: Path) -> None:
    group.mkdir(exist_ok=True)
    run(group, OPENS, str(service.simulated_dir / "gpu0/memory"))


def test_clean_gpus_are_clean_after_a_kill(service: Service) -> None:
    before = receipts(service)
    for _ in range(2):  # the second time with a fence that was found
        service.kill()
        service.start()
        assert receipts(service) == before


@pytest.mark.parametrize("mode", ["watch", "refuse"])
def test_each_start_is_in_another_control_group(service: Service, group: Path) -> None:
    """As each new pod, container or unit is. The rules that stand know the group of the last service only."""
    before = receipts(service)
    service.kill()
    groups.end(group / "autoclave")
    service.start()
    assert receipts(service) == before
    assert service.settled(0, "clean").openers == ()


def test_a_gpu_that_was_opened_meanwhile_is_scrubbed(service: Service, group: Path) -> None:
    before = receipts(service)
    service.kill()
    opened(service, group / "foreign")
    service.start("no longer clean: it was used without a grant")
    service.hear("serving")
    after = receipts(service)
    assert (after[0] != before[0], after[1]) == (True, before[1])


def test_a_short_use_of_a_clean_gpu_is_noticed(service: Service, group: Path) -> None:
    before = receipts(service)
    opened(service, group / "foreign")
    service.hear("no longer clean: it was used without a grant, by a process of /foreign")
    after = receipts(service)
    assert (after[0] != before[0], after[1]) == (True, before[1])


def test_a_scrub_finds_who_is_outside_of_the_fence(service: Service) -> None:
    """This process is outside: the fence does not count it, and the driver does not list who only has the node open."""
    service.settled(0, "clean")
    with (service.simulated_dir / "gpu0/memory").open("rb"), service.popen("scrub", 0, stderr=subprocess.PIPE) as scrub:
        _, said = scrub.communicate()
    assert (scrub.returncode, f"(pid {os.getpid()}" in said) == (1, True), said


def test_a_job_has_its_gpu_alone_also_after_a_kill(service: Service, group: Path) -> None:
    service.settled(0, "clean")
    job = made_group(group / "job")

    def acquired(place: Path) -> tuple[int, str]:
        with service.popen("acquire", 0, "--owner", "job 7", "--cgroup", place, stderr=subprocess.PIPE) as process:
            _, said = process.communicate()
        return process.returncode, said

    code, said = acquired(group)
    assert (code, "holds the scrub service" in said) == (2, True), said
    assert acquired(job)[0] == 0
    for _ in range(2):
        opened(service, job)
        assert service.settled(0, "granted").openers == ()
        service.kill()
        service.start()
    opened(service, group / "foreign")
    service.hear("a process asked for a GPU that is not its own")
    assert [opener.place for opener in service.settled(0, "granted").openers] == ["/foreign"]
