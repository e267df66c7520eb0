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


@pytest.mark.parametrize(
    ("service", "level"),
    [(base.Process(True, ALL), Level.OK), (base.Process(False, ALL), Level.BROKEN), (DENIED, Level.BROKEN)],
)
def test_a_service_that_cannot_see_every_process_is_broken(service, level):
    assert only(stands(service=service), "pid-namespace")[0] is level


@pytest.mark.parametrize(("here", "level"), [(True, Level.OK), (False, Level.BROKEN), (DENIED, Level.BROKEN)])
def test_without_a_service_the_doctors_own_pid_namespace_is_judged(here, level):
    assert only(replace(stands(sees_all=here, service=ABSENT), answer=SILENT), "pid-namespace")[0] is level


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
    found = only(stands(service=base.Process(True, ALL & ~(1 << lacks.value))), "privileges")
    assert (found[0], f"lacks CAP_{lacks.name}:" in found[1]) == (level, True)


def test_privileges_that_cannot_be_read_are_not_guessed():
    assert finding_of(stands(service=DENIED), "privileges") == []
    assert only(stands(service=DENIED), "pid-namespace")[0] is Level.BROKEN


@pytest.mark.parametrize(
    ("versions", "level"),
    [("version 1", Level.OK), ("version 2", Level.OK), (ABSENT, Level.BROKEN), (DENIED, Level.BROKEN)],
)
def test_control_groups_of_either_version_are_ok(versions, level):
    assert only(stands(cgroups=versions), "cgroups")[0] is level


@pytest.mark.parametrize(
    ("now", "level"),
    [
        (node.YEAR_2024 - 0.1, Level.WARNING),
        (node.YEAR_2024, Level.WARNING),  # before the service started
        (NOW - 0.1, Level.WARNING),
        (NOW, Level.OK),
    ],
)
def test_a_clock_never_set_or_set_back_is_a_warning(now, level):
    status = replace(STATUS, service=replace(STATUS.service, started=NOW))
    assert only(replace(FACTS, now=now, answer=status), "clock")[0] is level


def test_an_unset_clock_is_found_without_a_service():
    assert only(replace(FACTS, now=node.YEAR_2024 - 0.1, answer=SILENT), "clock")[0] is Level.WARNING
    assert only(replace(FACTS, now=node.YEAR_2024, answer=SILENT), "clock")[0] is Level.OK


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "level"),
    [
        (100 * 2**20, 1000, Level.OK),
        (100 * 2**20, None, Level.OK),
        (100 * 2**20 - 1, None, Level.WARNING),
        (100 * 2**20, 999, Level.WARNING),
        (10 * 2**20, 16, Level.WARNING),
        (10 * 2**20 - 1, 1000, Level.BROKEN),
        (100 * 2**20, 15, Level.BROKEN),
        (0, 0, Level.BROKEN),
    ],
)
def test_little_room_for_the_ledger_is_reported_early(free_bytes, free_files, level):
    assert only(stands(room=base.Room(free_bytes, free_files)), "disk")[0] is level


def test_unreadable_disk_space_at_a_known_ledger_is_a_warning():
    assert only(stands(room=ABSENT), "disk")[0] is Level.WARNING
    assert finding_of(replace(stands(room=None), answer=SILENT), "disk") == []


@pytest.mark.parametrize(
    ("writable", "plugin", "level"),
    [
        (True, (), Level.OK),
        (False, (), Level.WARNING),
        (False, (base.Socket("/d/a.sock", DENIED),), Level.WARNING),
        (False, (base.Socket("/d/a.sock"),), Level.OK),
    ],
)
def test_a_directory_the_plugin_cannot_write_to_is_a_warning(writable, plugin, level):
    facts = replace(stands(kubelet_dir_writable=writable), plugin=base.Sockets("/d", plugin))
    assert only(facts, "plugin-dir")[0] is level


@pytest.mark.parametrize(
    ("rivals", "level"),
    [
        (base.Sockets("/d"), Level.OK),
        (
            base.Sockets("/d", (base.Socket("/d/nvidia-gpu.sock", base.CheckFault("", dead=True)),)),
            Level.OK,
        ),  # left behind
        (base.Sockets("/d", (base.Socket("/d/nvidia-gpu.sock", DENIED),)), Level.BROKEN),
        (base.Sockets("/d", (base.Socket("/d/nvidia-gpu.sock"),)), Level.BROKEN),
        (base.Sockets("/d", fault=DENIED), Level.BROKEN),
    ],
)
def test_another_running_plugin_is_broken(rivals, level):
    assert only(stands(rivals=rivals), "rival-plugin")[0] is level


def test_a_plugin_behind_ours_is_no_rival():
    facts = stands(rivals=base.Sockets("/d", (base.Socket("/d/nvidia-gpu.sock"),)), in_front="/d/vendor/kubelet.sock")
    assert only(facts, "rival-plugin")[0] is Level.OK


@pytest.mark.parametrize(
    ("registered", "level"),
    [
        ({}, Level.OK),
        ({OURS: {"GPU-1"}, "example.com/port": {"0", "1"}}, Level.OK),
        ({OURS: {"GPU-1"}, "example.com/port": {"GPU-2"}, "example.com/lane": {"GPU-2"}}, Level.OK),  # not ours
        ({OURS: {"GPU-1"}, "nvidia.com/gpu.shared": {"GPU-1"}}, Level.BROKEN),
        ({OURS: {"GPU-1::0", "GPU-1::1"}}, Level.BROKEN),
        ({OURS: {"GPU-1::0"}}, Level.BROKEN),
        (ABSENT, Level.OK),  # ``checkpoint`` says why
    ],
)
def test_a_gpu_registered_under_a_second_name_is_broken(registered, level):
    assert only(stands(registered=registered), "rival-plugin")[0] is level


def test_an_unreadable_kernel_log_is_a_warning_on_nvidia_nodes():
    assert only(FACTS, "kernel-log")[0] is Level.OK
    text = "the kernel log cannot be read: XIDs before the start, and SXids, are not seen: no such file or directory"
    assert only(stands(kernel_log=ABSENT), "kernel-log") == (Level.WARNING, text)
    assert finding_of(of_others(kernel_log=ABSENT), "kernel-log") == []


def test_without_a_service_every_gpu_counts():
    registered = {OURS: {"GPU-2"}, "nvidia.com/gpu.shared": {"GPU-2"}, "a.b/c": {"0"}, "a.b/d": {"0"}}
    facts = replace(stands(registered=registered), answer=SILENT)
    level, text = only(facts, "rival-plugin")
    assert (level, "the kubelet knows GPU-2 under" in text) == (Level.BROKEN, True)


def test_without_the_kubelets_directory_its_contents_are_not_judged():
    facts = replace(FACTS, kubelet_dir=replace(FACTS.kubelet_dir, fault=ABSENT))
    assert (finding_of(facts, "plugin-dir"), finding_of(facts, "rival-plugin")) == ([], [])


DENIABLE = "driver shared_with_guests mps persistenced cgroups service room options kernel_log numa_gpus"


@pytest.mark.parametrize("name", DENIABLE.split())
def test_if_access_is_denied_the_remedy_is_another_user(name):
    spoilt = stands(**{name: DENIED})
    judged = [it for check in CHECKS for it in check(spoilt) if it.level is not Level.OK]
    assert {it.remedy for it in judged} == {base.OTHER_USER}
