"""What the backend makes of every kind of error, from every function of NVML that it calls.

It never raises an unexpected error, and never reports "not in use" or healthy by mistake. ``OPTIONAL`` lists what a
device or a driver may lack. ``test_nvml`` shows the kind of each error.
"""

from __future__ import annotations

import pynvml
import pytest

from scrubber.core.model import DeviceInfo, Vitals
from scrubber.devices.base import DeviceError, DeviceLostError
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.nvml import DriverGoneError, NotFoundError, NotSupportedError
from tests.devices.nvidia.nvml_errors import CODES, KINDS
from tests.fakes.nvml.machine import Slice

ONE_OF_EACH_KIND = {KINDS.get(code): code for code in (*reversed(CODES), pynvml.NVML_ERROR_UNKNOWN)}.values()

UNTOLD, LOST, GONE = (
    {code for code, kind in KINDS.items() if kind in kinds}
    for kinds in ([NotSupportedError], [DeviceLostError, NotFoundError], [DriverGoneError])
)
CROWD = {pynvml.NVML_ERROR_INSUFFICIENT_SIZE}

OPEN, BY_UUID, MIG = "nvmlInitWithFlags", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMigMode"
PARENT, MEMORY = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlDeviceGetMemoryInfo_v2"
LISTS = {f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")}
MPS = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
ROWS, PAGES = "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPagesPendingStatus"
ECC, FIELDS = "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetFieldValues"
CAPABILITY, ARCHITECTURE = "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetArchitecture"
ECC_MODE = "nvmlDeviceGetEccMode"
LINK, LINKED_TO, AT = (f"nvmlDeviceGetNvLink{what}" for what in ("State", "RemoteDeviceType", "RemotePciInfo_v2"))
INSTANCE, INSTANCE_INFO = "nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo"
PROFILE = "nvmlDeviceGetGpuInstanceProfileInfoV"

USE_OF_A_GPU = {OPEN, BY_UUID, MIG, MEMORY, "nvmlSystemGetDriverVersion"} | LISTS
USE_OF_A_SLICE = USE_OF_A_GPU - {MIG}
HEALTH_OF_A_GPU = USE_OF_A_GPU | {ROWS, ECC, FIELDS}
HEALTH_OF_A_SLICE = USE_OF_A_SLICE | {PARENT, PAGES, ROWS, ECC, FIELDS}
NAMING = {
    OPEN, MIG, MEMORY, "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID",
    "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMinorNumber", CAPABILITY, ARCHITECTURE,
    ECC_MODE, "nvmlDeviceGetSerial", "nvmlDeviceGetVirtualizationMode", LINK, LINKED_TO, AT,
    "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", INSTANCE, INSTANCE_INFO, PROFILE,
}  # fmt: skip
# For signs: one that cannot be read is none, unless the error says more than any sign.
SIGNS_OF_A_SLICE = {
    "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSramEccErrorStatus",
}  # fmt: skip
SIGNS_OF_A_GPU = SIGNS_OF_A_SLICE | {LINK, "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetUtilizationRates"}
EVERY = sorted(NAMING | HEALTH_OF_A_GPU | HEALTH_OF_A_SLICE | SIGNS_OF_A_GPU)

# What may not be known, and with which answers: without it, health stays known, and no list is called empty.
OPTIONAL = {
    MIG: UNTOLD,  # a GPU, or a driver, that knows no MIG
    ROWS: UNTOLD,  # GPUs before Ampere, and all in MIG mode
    PAGES: UNTOLD,  # GPUs since Ampere
    ECC: UNTOLD,  # without ECC memory, or with it switched off
    FIELDS: UNTOLD,  # drivers that know of no recovery action
} | dict.fromkeys(LISTS, UNTOLD | CROWD)  # memory without a known holder is reported all the same

# The same for names: what is then reported with less detail, and how.
UNNAMED = {
    CAPABILITY: ("compute",),
    ECC_MODE: ("ecc",),  # as of one that has none
    "nvmlDeviceGetSerial": ("serial",),
    ARCHITECTURE: ("reset_domain", "island"),  # as of the oldest, whose links matter also while they are cut
    LINK: ("island",),
    LINKED_TO: ("island",),
    AT: (),  # of switches
    MIG: ("island",),  # one that was cut has links again
    INSTANCE: ("resource",),
    INSTANCE_INFO: ("resource",),
    PROFILE: ("resource",),
}


@pytest.fixture
def small(rig):
    """One whole GPU, and one in two slices."""
    rig.cut(1, Slice("1g.18gb+me"), Slice())
    rig.gpu(1).set({"mig.0.name": "NVIDIA H200 MIG 1g.18gb"})  # its attributes come from its instance
    rig.machine.set(
        {key: None for key in rig.machine.read() if key.startswith(tuple(f"gpu.{n}." for n in range(2, 8)))}
    )
    return rig


@pytest.fixture
def unlogged(small, monkeypatch) -> None:
    """Most of the time would go into the log of this machine's calls."""
    assert small.machine.log
    monkeypatch.delenv("AUTOCLAVE_FAKE_NVML_LOG")


def names(backend: Nvidia) -> dict[str, DeviceInfo]:
    try:
        return {info.uuid: info for info in backend.inventory()}
    except DeviceError:
        return {}


def health(backend: Nvidia, uuid: str) -> Vitals:
    """As the service takes it: see ``Sight.vitals``."""
    try:
        return backend.vitals(uuid)
    except DeviceLostError:
        return Vitals(lost=True)
    except DeviceError:
        return Vitals(unresponsive=True)


def use(backend: Nvidia, uuid: str) -> bool | None:
    try:
        return backend.has_holders(uuid)
    except DeviceError:
        return None


def expected_health(call: str, code: int, needed: set[str]) -> Vitals:
    if call not in needed or code in OPTIONAL.get(call, ()):
        return Vitals()
    if code in LOST:
        return Vitals(lost=True)
    if code == pynvml.NVML_ERROR_RESET_REQUIRED and call != OPEN:
        return Vitals(reset_required=True)
    return Vitals(unresponsive=True)


def expected_with_signs(call: str, code: int, needed: set[str], signs: set[str]) -> Vitals:
    if call not in signs or code in LOST | GONE | {pynvml.NVML_ERROR_RESET_REQUIRED}:
        return expected_health(call, code, needed | signs)
    return Vitals()


def expected_use(call: str, needed: set[str], code: int) -> bool | None:
    """The device has no holder; an unknown list is not an empty one."""
    harmless = call not in needed or (call == MIG and code in UNTOLD)
    return False if harmless else None


def test_the_table_names_every_function_that_is_called(small) -> None:
    backend = small.backend()
    for uuid in names(backend):
        backend.has_holders(uuid)
        backend.vitals(uuid)
    small.gpu(0).set({"nvlink.0": f"1 0 4 {small.gpu(1)['pci']}"})
    small.reload_driver()
    backend.inventory()
    asked = {call for _, call, _ in small.machine.calls()} - {"nvmlErrorString"}
    assert asked == {*EVERY}


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize("call", EVERY)
def test_each_kind_of_error_is_judged_by_the_table(small, call: str) -> None:
    truth = names(small.backend())
    whole, (first, second) = small.gpu(0).uuid, [uuid for uuid in truth if uuid.startswith("MIG-")]
    for code in ONE_OF_EACH_KIND:
        backend = small.backend()
        assert names(backend) == truth
        small.library.close()
        small.machine.fail(call, code)
        case = f"{call} -> {code}"
        assert health(backend, whole) == expected_with_signs(call, code, HEALTH_OF_A_GPU, SIGNS_OF_A_GPU), case
        assert use(backend, whole) is expected_use(call, USE_OF_A_GPU, code), case
        for uuid in (first, second):
            expected = expected_with_signs(call, code, HEALTH_OF_A_SLICE, SIGNS_OF_A_SLICE)
            if (call, code) == (MPS, pynvml.NVML_ERROR_INVALID_ARGUMENT):  # so NVML says that slices have no such list
                expected = Vitals()
            assert health(backend, uuid) == expected, case
            assert use(backend, uuid) is expected_use(call, USE_OF_A_SLICE, code), case
        small.machine.fail(call, None)
        assert names(backend) == truth, case


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize("call", sorted(NAMING))
def test_with_an_error_the_inventory_is_true_or_lacks_something(small, call: str) -> None:
    truth = names(small.backend())
    for code in ONE_OF_EACH_KIND:
        known, fresh = small.backend(), small.backend()
        assert names(known) == truth
        small.library.close()
        small.machine.fail(call, code)
        still, first = names(known), names(fresh)
        small.machine.fail(call, None)
        small.library.close()
        assert still == {} or still.keys() >= truth.keys(), f"{call} -> {code}: what was known is not named any more"
        for uuid, info in first.items():
            if call == MIG and uuid == small.gpu(1).uuid:
                assert code in UNTOLD  # a GPU without MIG has no slices
                continue
            lesser = {
                name for name in DeviceInfo.__dataclass_fields__ if getattr(info, name) != getattr(truth[uuid], name)
            }
            assert lesser <= {*UNNAMED.get(call, ())}, f"{call} -> {code}"
            assert not lesser or code in UNTOLD | {pynvml.NVML_ERROR_INVALID_ARGUMENT}, f"{call} -> {code}"
