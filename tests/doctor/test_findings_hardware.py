"""What is said of NVIDIA's driver and of what hands its GPUs to containers."""

from dataclasses import replace

import pytest

from autoclave.doctor import base
from autoclave.doctor.base import Level
from autoclave.doctor.findings import roster
from scrubber.core.model import Holder
from scrubber.ground.errors import Unreachable
from tests.doctor.nodes import (
    ABSENT,
    CONFIG,
    DENIED,
    FACTS,
    GPU,
    OPTIONS,
    SERVICE,
    STATUS,
    finding_of,
    of_others,
    only,
    stands,
)

HIDDEN = Unreachable("cannot reach the scrub service at /d; start it")


def loaded_with(**options):
    return stands(options={**OPTIONS, **options})


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, Level.OK, "the driver is loaded: 580.142"),
        ({"libraries": ()}, Level.OK, "loaded"),
        ({"libraries": ("570.1", "580.142")}, Level.OK, "loaded"),
        (
            {"libraries": ("590.10",)},
            Level.BROKEN,
            "the loaded driver is 580.142, but the installed driver library is 590.10",
        ),
        ({"driver": ABSENT}, Level.BROKEN, "the NVIDIA driver is not loaded"),
        ({"driver": DENIED}, Level.BROKEN, "cannot tell which driver is loaded: permission denied"),
    ],
)
def test_the_driver_must_be_loaded_and_match_its_library(changes, level, words):
    found = only(stands(**changes), "driver")
    assert (found[0], words in found[1]) == (level, True)


@pytest.mark.parametrize(
    ("lacks", "words"),
    [("CuPy is installed but cannot be loaded: ImportError: x", "no GPU: CuPy is installed"), ("", "not loaded yet")],
)
def test_a_service_that_has_not_loaded_cupy_is_broken(lacks, words):
    found = only(replace(FACTS, answer=replace(STATUS, service=replace(SERVICE, cupy="", lacks=lacks))), "cupy")
    assert (found[0], words in found[1]) == (Level.BROKEN, True)


ONLY_12, BOTH = "install autoclave[cuda12] where", "install autoclave[cuda12] or autoclave[cuda13], not both, where"


@pytest.mark.parametrize(
    ("driver", "cupy", "words", "remedy"),
    [
        ("580.65.06", "14.2.0 (cuda13)", "it works with the driver 580.65.06, as would cuda12", None),
        ("615.10", "14.2.0 (cuda12)", "it works with the driver 615.10, as would cuda13", None),
        ("525.60.13", "14.2.0 (cuda12)", "it works with the driver 525.60.13", None),
        ("575.57.08", "14.2.0 (cuda13)", "but does not work with the driver 575.57.08", ONLY_12),
        ("470.256.02", "14.2.0 (cuda12)", "but does not work with the driver", "update the driver to 525"),
        ("470.256.02", "", "CuPy is not installed", "update the driver to 525"),
        ("575.57.08", "", "CuPy is not installed", ONLY_12),
        ("580.65.06", "", "CuPy is not installed", BOTH),
        (DENIED, "", "CuPy is not installed", BOTH),
        ("no number", "14.2.0 (cuda13)", "CuPy 14.2.0 (cuda13) is", None),
        (DENIED, "14.2.0 (cuda13)", "CuPy 14.2.0 (cuda13) is", None),
        ("575.57.08", "14.2.0", "CuPy 14.2.0 is", None),
    ],
)
@pytest.mark.parametrize("answers", [True, False], ids=["the service answers", "no service answers"])
def test_cupy_must_work_with_the_driver_in_use(answers, driver, cupy, words, remedy):
    """What the service says decides. If it does not answer, the finding names the Python that was checked."""
    said, other = ("", cupy), ("CuPy is not installed", "")
    lacks, name = said if cupy else other
    answer = replace(STATUS, service=replace(SERVICE, cupy=name, lacks=lacks)) if answers else HIDDEN
    here = (other if cupy else ("", "14.2.0 (cuda12)")) if answers else (lacks, name)
    facts = replace(stands(driver=driver, cupy=base.Python("/opt/python", *here)), answer=answer)
    (found,) = (it for it in roster.judge(facts) if it.name == "cupy")
    assert (found.level, words in found.text) == (Level.OK if remedy is None else Level.BROKEN, True), found
    assert remedy is None or remedy in found.remedy
    assert ("installed for /opt/python, which runs this check" in found.text) is not answers


@pytest.mark.parametrize(
    ("nodes", "level", "words"),
    [
        (("0009:01:00.0", "0019:01:00.0"), Level.BROKEN, "the memory of GPU 0009:01:00.0, 0019:01:00.0 is a NUMA node"),
        ((), Level.OK, "the memory of no GPU is a NUMA node"),
        (DENIED, Level.BROKEN, "cannot tell whether the memory of a GPU is a NUMA node"),
    ],
)
def test_gpu_memory_that_linux_manages_is_broken(nodes, level, words):
    (found,) = (it for it in roster.judge(stands(numa_gpus=nodes)) if it.name == "coherent-memory")
    assert (found.level, words in found.text) == (level, True)
    assert nodes in {(), DENIED} or "NVreg_CoherentGPUMemoryMode=driver" in found.remedy


def test_a_missing_driver_silences_further_driver_checks():
    names = {it.name for it in roster.judge(stands(driver=ABSENT, numa_gpus=("0009:01:00.0",)))}
    assert not names & {"scrub-on-free", "vgpu-host", "persistence", "coherent-memory"}


def test_unguarded_nvidia_gpus_give_one_warning_and_no_other_finding():
    unguarded = replace(of_others(), driver=FACTS.driver, options=FACTS.options)
    assert {it.name for it in roster.judge(unguarded)} - {it.name for it in roster.judge(of_others())} == {"driver"}
    level, text = only(unguarded, "driver")
    assert (level, text.endswith("is loaded (580.142), but the scrub service uses another backend")) == (
        Level.WARNING,
        True,
    )


@pytest.mark.parametrize(("driver", "judged"), [("580.142", True), (DENIED, True), (ABSENT, False)])
def test_without_a_service_nvidia_checks_need_a_loaded_driver(driver, judged):
    names = {it.name for it in roster.judge(replace(stands(driver=driver), answer=HIDDEN))}
    assert ("mps" in names, "driver" in names) == (judged, judged)


def test_without_a_service_a_gpu_without_a_driver_is_broken():
    facts = replace(stands(driver=ABSENT, on_bus=("0000:17:00.0",)), answer=HIDDEN)
    assert only(facts, "driver") == (Level.BROKEN, "the NVIDIA driver is not loaded: no such file or directory")


@pytest.mark.parametrize("option", ["RegistryDwords", "RegistryDwordsPerDevice"])
@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("RMDisableScrubOnFree=1", Level.BROKEN),
        ("rmdisablescrubonfree=0x1;", Level.BROKEN),
        ("Foo=1; RMDisable ScrubOnFree = 1 ;Bar=2", Level.BROKEN),
        ("RMDisableScrubOnFree=yes", Level.BROKEN),
        ("RMDisableScrubOnFree=0", Level.OK),
        ("RMDisableScrubOnFree=0x00", Level.OK),
        ("RMDisableScrubOnFree=", Level.OK),
        ("RMDisableScrubOnFreely=1", Level.OK),
        ("RMDisableFastScrubber=1", Level.WARNING),
        ("RMDisableFastScrubber=0", Level.OK),
    ],
)
def test_a_key_that_disables_zeroing_is_found_in_any_spelling(option, value, level):
    assert only(loaded_with(**{option: value}), "scrub-on-free")[0] is level


def test_a_registry_key_is_reported_with_its_gpus_address():
    value = "pci=0000:3b:00.0;Foo=1;pci=0000:5e:00.0;RMDisableScrubOnFree=1"
    assert "is set for 0000:5e:00.0:" in only(loaded_with(RegistryDwordsPerDevice=value), "scrub-on-free")[1]


@pytest.mark.parametrize(("value", "level"), [("0", Level.BROKEN), ("1", Level.OK)])
def test_host_memory_given_out_without_zeroing_is_broken(value, level):
    assert only(loaded_with(InitializeSystemMemoryAllocations=value), "scrub-on-free")[0] is level


def test_unknown_driver_options_are_broken():
    assert [level for level, _ in finding_of(stands(options={}), "scrub-on-free")] == [Level.BROKEN] * 3
    for fault in (DENIED, ABSENT):
        assert only(stands(options=fault), "scrub-on-free")[0] is Level.BROKEN


@pytest.mark.parametrize(
    ("compute", "level"),
    [("7.0", Level.WARNING), ("6.1", Level.WARNING), ("7.5", Level.OK), ("10.0", Level.OK), ("", Level.OK)],
)
def test_a_gpu_older_than_turing_is_a_warning(compute, level):
    found = only(replace(FACTS, answer=replace(STATUS, devices=(replace(GPU, compute=compute),))), "scrub-on-free")
    assert (found[0], "never handed out" in found[1]) == (level, level is Level.WARNING)


@pytest.mark.parametrize(
    ("signs", "level"), [((), Level.OK), (("module nvidia_vgpu_vfio is loaded",), Level.BROKEN), (DENIED, Level.BROKEN)]
)
def test_gpus_shared_with_virtual_machines_are_broken(signs, level):
    assert only(stands(shared_with_guests=signs), "vgpu-host")[0] is level


@pytest.mark.parametrize(("found", "level"), [((), Level.OK), (("process 7",), Level.BROKEN), (DENIED, Level.BROKEN)])
def test_a_running_multi_process_service_is_broken(found, level):
    assert only(stands(mps=found), "mps")[0] is level


def test_mps_is_not_judged_from_another_pid_namespace():
    assert finding_of(stands(sees_all=False), "mps") == []
    assert only(stands(sees_all=False, process=DENIED), "pid-namespace")[0] is Level.BROKEN


@pytest.mark.parametrize(("there", "level"), [(True, Level.OK), (False, Level.WARNING), (DENIED, Level.WARNING)])
def test_a_missing_persistence_daemon_is_a_warning(there, level):
    assert only(stands(persistenced=there), "persistence")[0] is level


@pytest.mark.parametrize(
    ("toolkit", "level"),
    [
        (base.Toolkit(True, (CONFIG,)), Level.OK),
        (base.Toolkit(True, (replace(CONFIG, by_environment=True),)), Level.BROKEN),
        (base.Toolkit(True, (CONFIG, replace(CONFIG, by_environment=True))), Level.BROKEN),
        (base.Toolkit(True, (replace(CONFIG, by_mounts=True),)), Level.WARNING),
        (base.Toolkit(True, (replace(CONFIG, fault=DENIED),)), Level.BROKEN),
        (base.Toolkit(True), Level.BROKEN),
        (base.Toolkit(False), Level.WARNING),
    ],
)
def test_a_toolkit_must_not_give_pods_gpus_without_a_request(toolkit, level):
    assert only(stands(toolkit=toolkit), "container-toolkit")[0] is level


def spec(*names, kind="nvidia.com/gpu", at="/etc/cdi/a.yaml", **changes):
    return base.CdiSpec(at, kind, frozenset(names), **changes)


@pytest.mark.parametrize(
    ("specs", "level", "words"),
    [
        ((spec("GPU-1"),), Level.OK, "name 1 devices"),
        ((spec("GPU-2"), spec("GPU-1")), Level.OK, "name 2 devices"),
        ((spec("0", "all"),), Level.WARNING, "names GPU-1"),
        ((spec("GPU-1", kind="example.com/gpu"),), Level.WARNING, "exists"),
        ((), Level.WARNING, "exists"),
        ((spec(fault=DENIED),), Level.WARNING, "cannot use /etc/cdi/a.yaml: permission denied"),
        ((spec("GPU-1"), spec("GPU-1", at="/run/cdi/a.json")), Level.OK, "name 1 devices"),
        ((spec("GPU-1", "all"), spec("all", at="/etc/cdi/b.json")), Level.OK, "name 2 devices"),
        (
            (spec("GPU-1"), spec("GPU-1", at="/etc/cdi/b.json")),
            Level.WARNING,
            "/etc/cdi/a.yaml and /etc/cdi/b.json both name GPU-1, and container runtimes then refuse it",
        ),
    ],
)
def test_a_gpu_without_a_usable_cdi_name_is_a_warning(specs, level, words):
    found = only(stands(cdi=specs), "cdi")
    assert (found[0], words in found[1]) == (level, True)


@pytest.mark.parametrize(
    ("specs", "kind", "answered", "wanted"),
    [
        ((spec("GPU-1"),), "nvidia.com/gpu", True, [(Level.OK, "name 1 devices")]),
        ((spec("GPU-7"),), "nvidia.com/gpu", True, [(Level.BROKEN, "names GPU-1")]),
        ((spec("GPU-7"),), "nvidia.com/gpu", False, [(Level.OK, "name 1 devices")]),
        ((spec("0", "MIG-7"),), "nvidia.com/gpu", False, [(Level.OK, "name 2 devices")]),
        ((spec("0", "all"),), "nvidia.com/gpu", False, [(Level.BROKEN, "names a GPU by its UUID")]),
        ((spec("GPU-7"),), "example.com/gpu", False, [(Level.BROKEN, "of the kind example.com/gpu exists")]),
        ((), "nvidia.com/gpu", False, [(Level.BROKEN, "exists")]),
        ((spec(fault=DENIED),), "nvidia.com/gpu", False, [(Level.WARNING, "denied"), (Level.BROKEN, "exists")]),
        ((spec(fault=DENIED), spec("GPU-1")), "nvidia.com/gpu", True, [(Level.WARNING, "denied")]),
        ((spec("GPU-1"), spec("GPU-1", at="/etc/cdi/b")), "nvidia.com/gpu", True, [(Level.BROKEN, "both name GPU-1")]),
    ],
)
def test_a_plugin_that_uses_cdi_needs_every_gpu_named(specs, kind, answered, wanted):
    """Also where nothing else tells of a driver: its init container sees no part of one."""
    facts = (
        stands(cdi=specs) if answered else replace(stands(cdi=specs, driver=ABSENT), answer=Unreachable("no service"))
    )
    found = finding_of(replace(facts, cdi_kind=kind), "cdi")
    assert [level for level, _ in found] == [level for level, _ in wanted]
    assert all(words in text for (_, text), (_, words) in zip(found, wanted, strict=True))


def test_only_slices_of_a_sliced_gpu_need_cdi_names():
    piece = replace(GPU, device="MIG-1", mig=True)
    cut = replace(FACTS, answer=replace(STATUS, devices=(GPU, piece)))
    assert "names MIG-1" in only(cut, "cdi")[1]
    named = replace(cut, cdi=(spec("MIG-1"),))
    assert only(named, "cdi")[0] is Level.OK


DCGM = Holder(7, 1.0, "dcgm-exporter", "pod-1")


def with_gpu(openers=(), **changes):
    status = replace(STATUS, devices=(replace(GPU, **changes), replace(GPU, device="GPU-2", index=4)))
    return replace(stands(openers={"GPU-1": openers, "GPU-2": openers}), answer=status)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (with_gpu((DCGM,)), 'no reset of GPU 3, 4 is possible: it is open in "dcgm-exporter" (pid 7)'),
        (with_gpu(model="Tesla T4"), "no reset of GPU 3 is possible: a Tesla T4 has no function-level reset"),
        (with_gpu(model="NVIDIA A40-8Q"), "no reset of GPU 3 is possible: it is a vGPU"),
    ],
)
def test_obstacles_of_a_reset_are_reported_ahead(facts, words):
    found = only(facts, "reset")
    assert (found[0], words in found[1]) == (Level.WARNING, True)


def test_a_gpu_with_unknown_holders_is_not_ready_for_reset():
    found = only(stands(openers={}), "reset")
    assert (found[0], "the processes that have it open cannot be found" in found[1]) == (Level.WARNING, True)


def test_the_obstacle_of_a_reset_comes_with_its_command():
    (finding,) = [it for it in roster.judge(with_gpu((DCGM,))) if it.name == "reset"]
    assert "kubectl label node NODE --overwrite nvidia.com/gpu.deploy.dcgm-exporter=false" in finding.remedy


def test_the_owner_of_a_gpu_does_not_prevent_a_reset():
    assert only(with_gpu((Holder(7, 1.0, "train", "pod-2"),), owner="pod-2"), "reset")[0] is Level.WARNING  # of GPU 4
    busy = replace(GPU, owner="pod-2")
    facts = replace(
        stands(openers={"GPU-1": (Holder(7, 1.0, "train", "pod-2"),)}), answer=replace(STATUS, devices=(busy,))
    )
    assert only(facts, "reset")[0] is Level.OK


@pytest.mark.parametrize(("ecc", "level"), [(True, Level.OK), (None, Level.OK), (False, Level.BROKEN)])
def test_memory_without_ecc_is_broken(ecc, level):
    found = only(with_gpu(ecc=ecc), "ecc")
    assert found[0] is level
    assert ("GPU 3 has no ECC" in found[1]) == (ecc is False)


@pytest.mark.parametrize(
    ("kernel", "warned"),
    [("", False), ("6.9.12", False), ("6.10", True), ("6.15.8-arch1", True), ("6.15.9", False), ("6.16.0-rc1", False)],
)
@pytest.mark.parametrize("facts", [stands, of_others])
def test_amds_driver_matters_only_with_a_kernel_without_clearing(facts, kernel, warned):
    found = [it.level for it in roster.judge(facts(amdgpu=kernel)) if it.name == "amdgpu"]
    assert found == [Level.WARNING] * warned
