"""The fence is told the one group that holds a pod, by real groups; another group with its name is a rival."""

from __future__ import annotations

import pytest

from scrubber.core.model import CONTAINER as CONTAINER_OF_NO_POD
from scrubber.node.cgroup_tree import GroupIds
from tests.node.control_groups import ID, POD, UID, pod

NEIGHBOUR = f"ffffffff{UID[8:]}"
GUARANTEED = "cgroupfs, guaranteed"


@pytest.fixture
def ids(group) -> GroupIds:
    """Of the groups of a test."""
    return GroupIds(group(""))


@pytest.mark.parametrize("group", ["second"], indirect=True)
@pytest.mark.parametrize("child", [ID, f"crio-{ID}.scope"])
@pytest.mark.parametrize("driver", POD)
def test_a_pod_has_a_group_before_its_first_process(driver, child, group, ids) -> None:
    """CRI-O starts no process for the sandbox, and makes a group for it."""
    ours = group(pod(driver))
    assert ids.of(UID) == frozenset(), "such as the kubelet's, of another driver"
    group(f"{pod(driver)}/{child}")
    assert ids.of(UID) == {ours.stat().st_ino}
    assert ids.of(NEIGHBOUR) == frozenset()


@pytest.mark.parametrize("group", ["second"], indirect=True)
@pytest.mark.parametrize("driver", POD)
def test_another_group_with_the_pods_name_is_not_its(driver, group, enter, ids) -> None:
    ours, other = group(pod(driver)), group(f"kubepods/burstable/pod{UID}")
    enter(ours)
    assert ids.of(UID) == {ours.stat().st_ino}
    assert ids.rivals == {}
    process = enter(other)
    assert ids.of(UID) == {ours.stat().st_ino}, "it was the pod's before"
    assert ids.rivals == {UID: {other}}
    process.collect()
    assert ids.of(UID) == {ours.stat().st_ino}
    assert ids.rivals == {}, "a group that holds nobody"


@pytest.mark.parametrize("group", ["second"], indirect=True)
def test_of_two_groups_none_is_the_pods(group, enter, ids) -> None:
    both = [group(place) for place in (f"kubepods/besteffort/pod{UID}", f"kubepods/burstable/pod{UID}")]
    for place in both:
        enter(place)
    assert ids.of(UID) == frozenset()
    assert ids.rivals == {UID: set(both)}
    informed = GroupIds(group(""), {UID: f"/kubepods/besteffort/pod{UID}"}.get)
    assert informed.of(UID) == {both[0].stat().st_ino}, "the runtime knows it"
    assert informed.rivals == {UID: {both[1]}}


@pytest.mark.parametrize("group", ["second"], indirect=True)
def test_a_pod_that_ended_leaves_no_group_to_others(group, enter, ids) -> None:
    ours = group(pod(GUARANTEED))
    enter(ours).collect()
    group(f"{pod(GUARANTEED)}/{ID}")
    assert ids.of(UID) == {ours.stat().st_ino}
    for place in (f"{pod(GUARANTEED)}/{ID}", pod(GUARANTEED)):
        group(place).rmdir()
    other = group(f"kubepods/burstable/pod{UID}")
    enter(other)
    assert ids.of(UID) == frozenset()
    informed = GroupIds(group(""), {UID: pod(GUARANTEED)}.get)
    assert informed.of(UID) == frozenset(), "also for a service that starts later"


@pytest.mark.parametrize("group", ["second"], indirect=True)
@pytest.mark.parametrize("place", ["system.slice/docker-{}.scope", "docker/{}", "machine.slice/libpod-{}.scope"])
def test_a_container_of_docker_and_podman_is_found_by_name(place, group, enter, ids) -> None:
    ours = group(place.format(ID))
    enter(ours)
    assert ids.of(f"{CONTAINER_OF_NO_POD}{ID[:12]}") == {ours.stat().st_ino}
    for other in (f"{CONTAINER_OF_NO_POD}{'0' * 12}", f"{CONTAINER_OF_NO_POD}*", CONTAINER_OF_NO_POD):
        assert ids.of(other) == frozenset()
