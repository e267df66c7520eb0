"""What is said of the node around the GPUs."""

from dataclasses import replace

import pytest

from autoclave.doctor import base
from autoclave.doctor.base import Capability, Level
from autoclave.doctor.findings import hardware, node
from scrubber.ground.errors import Unreachable
from tests.doctor.nodes import ABSENT, DENIED, FACTS, NOW, STATUS, finding_of, of_others, only, stands

SILENT = Unreachable("cannot reach the scrub service at /d; start it")
OURS = "nvidia.com/gpu"
ALL = sum(1 << it.value for it in Capability)
CHECKS = (*hardware.CHECKS, *node.CHECKS)


RIVAL = "/d/nvidia-gpu.sock"


def plugin(*found, writable=False):
    """A node with these sockets of the plugin."""
    return replace(stands(kubelet_dir_writable=writable), plugin=base.Sockets("/d", found))


def rival(fault=None):
    """A node with a socket of NVIDIA's plugin."""
    return stands(rivals=base.Sockets("/d", (base.Socket(RIVAL, fault),)))


def room(megabytes, files, missing=0):
    """A node with so much room for the ledger."""
    return stands(room=base.Room(megabytes * 2**20 - missing, files))


def clock(now, started=NOW):
    """A node with this time, and a service that started then."""
    return replace(FACTS, now=now, answer=replace(STATUS, service=replace(STATUS.service, started=started)))


def registered(**devices):
    """A node on which the kubelet knows these devices, by resource."""
    return stands(registered={OURS if name == "ours" else f"a.b/{name}": set(ids) for name, ids in devices.items()})


def alone(now=NOW, **changes):
    """A node on which no service answers."""
    return replace(stands(**{"process": ABSENT, **changes}), answer=SILENT, now=now)


def behind_ours():
    """A node with a plugin that registers with ours."""
    return stands(rivals=base.Sockets("/d", (base.Socket(RIVAL),)), in_front="/d/vendor/kubelet.sock")


LEVELS = {
    "the service sees every process": ("pid-namespace", stands(process=base.Process(True, ALL)), Level.OK),
    "the service does not": ("pid-namespace", stands(process=base.Process(False, ALL)), Level.BROKEN),
    "nobody can tell": ("pid-namespace", stands(process=DENIED), Level.BROKEN),
    "no service, and the doctor sees every process": ("pid-namespace", alone(sees_all=True), Level.OK),
    "no service, and the doctor does not": ("pid-namespace", alone(sees_all=False), Level.BROKEN),
    "no service, and the doctor cannot tell": ("pid-namespace", alone(sees_all=DENIED), Level.BROKEN),
    "control groups of version 1": ("cgroups", stands(cgroups="version 1"), Level.OK),
    "control groups of version 2": ("cgroups", stands(cgroups="version 2"), Level.OK),
    "no control groups": ("cgroups", stands(cgroups=ABSENT), Level.BROKEN),
    "hidden control groups": ("cgroups", stands(cgroups=DENIED), Level.BROKEN),
    "a clock that was never set": ("clock", clock(node.YEAR_2024 - 0.1, 0.0), Level.WARNING),
    "a clock that was set far back": ("clock", clock(node.YEAR_2024), Level.WARNING),
    "a clock that was set back a little": ("clock", clock(NOW - 0.1), Level.WARNING),
    "a clock that is set": ("clock", clock(NOW), Level.OK),
    "no service, and a clock that was never set": ("clock", alone(now=node.YEAR_2024 - 0.1), Level.WARNING),
    "no service, and a clock that is set": ("clock", alone(now=node.YEAR_2024), Level.OK),
    "enough room": ("disk", room(100, 1000), Level.OK),
    "enough room, and files are not counted": ("disk", room(100, None), Level.OK),
    "a byte too little": ("disk", room(100, None, 1), Level.WARNING),
    "a file too few": ("disk", room(100, 999), Level.WARNING),
    "just room for a write": ("disk", room(10, 16), Level.WARNING),
    "no room for a write": ("disk", room(10, 1000, 1), Level.BROKEN),
    "no room for a file": ("disk", room(100, 15), Level.BROKEN),
    "no room": ("disk", room(0, 0), Level.BROKEN),
    "unknown room": ("disk", stands(room=ABSENT), Level.WARNING),
    "the plugin can make sockets": ("plugin-dir", plugin(writable=True), Level.OK),
    "the plugin cannot make sockets": ("plugin-dir", plugin(), Level.WARNING),
    "the same, and a socket is hidden": ("plugin-dir", plugin(base.Socket("/d/a.sock", DENIED)), Level.WARNING),
    "the same, and a plugin answers": ("plugin-dir", plugin(base.Socket("/d/a.sock")), Level.OK),
    "no other plugin": ("rival-plugin", stands(rivals=base.Sockets("/d")), Level.OK),
    "a socket that was left behind": ("rival-plugin", rival(base.CheckFault("", dead=True)), Level.OK),
    "a hidden socket": ("rival-plugin", rival(DENIED), Level.BROKEN),
    "another plugin": ("rival-plugin", rival(), Level.BROKEN),
    "hidden sockets": ("rival-plugin", stands(rivals=base.Sockets("/d", fault=DENIED)), Level.BROKEN),
    "a plugin behind ours": ("rival-plugin", behind_ours(), Level.OK),
    "no device is registered": ("rival-plugin", registered(), Level.OK),
    "devices of others": ("rival-plugin", registered(ours=["GPU-1"], port=["0", "1"]), Level.OK),
    "a device of others with two names": ("rival-plugin", registered(c=["GPU-2"], d=["GPU-2"]), Level.OK),
    "a device of ours with two names": ("rival-plugin", registered(ours=["GPU-1"], shared=["GPU-1"]), Level.BROKEN),
    "time slices": ("rival-plugin", registered(ours=["GPU-1::0", "GPU-1::1"]), Level.BROKEN),
    "one time slice": ("rival-plugin", registered(ours=["GPU-1::0"]), Level.BROKEN),
    "no list of the kubelet": ("rival-plugin", stands(registered=ABSENT), Level.OK),  # ``checkpoint`` says why
    "a kernel log": ("kernel-log", FACTS, Level.OK),
    "no kernel log": ("kernel-log", stands(kernel_log=ABSENT), Level.WARNING),
}  # fmt: skip


@pytest.mark.parametrize(("name", "facts", "level"), LEVELS.values(), ids=LEVELS)
def test_each_state_of_the_node_has_its_level(name, facts, level):
    assert only(facts, name)[0] is level


@pytest.mark.parametrize(
    ("lacks", "level"),
    [
        (Capability.SYS_PTRACE, Level.BROKEN),
        (Capability.DAC_READ_SEARCH, Level.BROKEN),
        (Capability.KILL, Level.WARNING),
        (Capability.SYS_ADMIN, Level.BROKEN),
    ],
)
def test_each_missing_privilege_is_reported(lacks, level):
    found = only(stands(process=base.Process(True, ALL & ~(1 << lacks.value))), "privileges")
    assert (found[0], f"lacks CAP_{lacks.name}:" in found[1]) == (level, True)


WITHOUT_DIRECTORY = replace(FACTS, kubelet_dir=replace(FACTS.kubelet_dir, fault=ABSENT))


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("privileges", stands(process=DENIED)),
        ("disk", alone(room=None)),
        ("kernel-log", of_others(kernel_log=ABSENT)),
        ("plugin-dir", WITHOUT_DIRECTORY),
        ("rival-plugin", WITHOUT_DIRECTORY),
    ],
)
def test_what_another_finding_explains_is_not_judged(name, facts):
    assert finding_of(facts, name) == []


def test_without_a_service_every_gpu_counts():
    facts = replace(registered(ours=["GPU-2"], shared=["GPU-2"], c=["0"], d=["0"]), answer=SILENT)
    level, text = only(facts, "rival-plugin")
    assert (level, "the kubelet knows GPU-2 under" in text) == (Level.BROKEN, True)


DENIABLE = "driver shared_with_guests mps persistenced cgroups process room options kernel_log numa_gpus"


@pytest.mark.parametrize("name", DENIABLE.split())
def test_if_access_is_denied_the_remedy_is_another_user(name):
    spoilt = stands(**{name: DENIED})
    judged = [it for check in CHECKS for it in check(spoilt) if it.level is not Level.OK]
    assert {it.remedy for it in judged} == {base.OTHER_USER}
