"""One owner of NVML: opened at the first call, never closed during a call, and its errors are no answers."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pynvml
import pytest

from scrubber.devices.base import DeviceError, DriverClosedError
from scrubber.devices.nvidia import nvml as library
from scrubber.devices.nvidia.nvml import (
    DriverGoneError,
    NotSupportedError,
)
from tests.devices.nvidia.nvml_errors import CODES, KINDS
from tests.fakes.nvml.machine import Slice
from tests.patience import WITHIN


def name_of(rig, number: int = 0) -> str:
    with rig.library.session() as nvml:
        found: str = nvml.ask(pynvml.nvmlDeviceGetName, nvml.handle(rig.gpu(number).uuid))
    return found


def initialised(rig) -> int:
    return [call for _, call, _ in rig.machine.calls()].count("nvmlInitWithFlags")


def test_nvml_opens_at_the_first_call_and_stays_open(rig) -> None:
    assert initialised(rig) == 0
    assert name_of(rig) == name_of(rig) == "NVIDIA H200"
    assert initialised(rig) == 1


@pytest.mark.parametrize("code", CODES)
def test_each_nvml_error_has_its_kind(rig, code: int) -> None:
    rig.gpu(0).fail("nvmlDeviceGetName", code)
    kind = KINDS.get(code, DeviceError)
    with rig.library.session() as nvml:
        with pytest.raises(DeviceError) as caught:
            nvml.ask(pynvml.nvmlDeviceGetName, nvml.handle(rig.gpu(0).uuid))
        assert type(caught.value) is kind
        with pytest.raises(kind) if kind is not NotSupportedError else nullcontext():
            assert nvml.ask_optional(pynvml.nvmlDeviceGetName, nvml.handle(rig.gpu(0).uuid)) is None


def test_nvml_is_unavailable_while_released_and_then_usable_again(rig) -> None:
    name_of(rig)
    rig.library.release_driver()
    rig.library.release_driver()
    assert rig.machine.clients() == ()
    rig.library.reacquire_driver()
    with pytest.raises(DriverClosedError):
        name_of(rig)
    rig.library.reacquire_driver()
    assert name_of(rig) == "NVIDIA H200"


@pytest.mark.parametrize("call", ["nvmlDeviceGetName", "nvmlInitWithFlags"])
def test_nvml_is_not_closed_during_a_call_that_hangs(rig, monkeypatch, call: str) -> None:
    monkeypatch.setattr(library, "ANSWER_TIMEOUT", 0.01)
    with rig.machine.hanging(call) as file:
        asking = threading.Thread(name="stuck", target=name_of, args=[rig], daemon=True)
        asking.start()
        while call not in [name for _, name, _ in rig.machine.calls()]:
            asking.join(0.001)
        with pytest.raises(DeviceError, match=r"has not returned \(stuck\)"):
            rig.library.release_driver()
        file.unlink()
        asking.join(WITHIN)
    assert name_of(rig) == "NVIDIA H200"  # the failed close did not close it
    assert "nvmlShutdown" not in [call for _, call, _ in rig.machine.calls()]


def test_a_close_that_fails_is_no_permission_to_reset(rig) -> None:
    name_of(rig)
    rig.machine.fail("nvmlShutdown", pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(DeviceError, match="cannot close NVML"):
        rig.library.release_driver()
    assert name_of(rig) == "NVIDIA H200"


def test_nvml_is_reopened_for_a_reloaded_driver(rig) -> None:
    name_of(rig)
    uuid, text = rig.gpu(0).uuid, rig.machine.path.read_text()
    rig.machine.unload()
    with rig.library.session() as nvml, pytest.raises(DriverGoneError):
        nvml.ask(pynvml.nvmlDeviceGetName, nvml.handle(uuid))
    rig.machine.path.write_text(text)
    assert name_of(rig) == "NVIDIA H200"
    assert initialised(rig) == 2


def test_nvml_is_reopened_on_request_once_calls_have_ended(rig) -> None:
    name_of(rig)
    with rig.library.session() as outer:
        rig.library.renew()
        assert name_of(rig) == "NVIDIA H200"
        assert initialised(rig) == 1
        before = outer.opening
    with rig.library.session() as nvml:
        assert nvml.opening == before + 1
    assert initialised(rig) == 2


def test_handles_of_gpus_are_cached_and_of_slices_not(rig) -> None:
    [uuid] = rig.cut(1, Slice())
    with rig.library.session() as nvml:
        for _ in range(3):
            nvml.handle(rig.gpu(0).uuid)
            nvml.handle(uuid)
    assert [call for _, call, _ in rig.machine.calls()].count("nvmlDeviceGetHandleByUUID") == 1 + 3


def test_an_error_renews_a_handle_unless_it_is_not_supported(rig) -> None:
    with rig.library.session() as nvml:
        for code in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN):
            rig.gpu(0).fail("nvmlDeviceGetName", code)
            with pytest.raises(DeviceError):
                nvml.ask(pynvml.nvmlDeviceGetName, nvml.handle(rig.gpu(0).uuid))
            nvml.handle(rig.gpu(0).uuid)
    assert [call for _, call, _ in rig.machine.calls()].count("nvmlDeviceGetHandleByUUID") == 2


def test_an_error_elsewhere_takes_no_handle_from_under_a_question(rig) -> None:
    """As when two threads ask: the one's error throws all handles away while the other looks for its own."""
    with rig.library.session() as nvml:
        uuid = rig.gpu(0).uuid

        class Torn(dict[str, object]):
            def __setitem__(self, key: str, value: object) -> None:
                super().__setitem__(key, value)
                rig.library.handles = {}

        rig.library.handles = Torn()
        assert nvml.ask(pynvml.nvmlDeviceGetName, nvml.handle(uuid)) == "NVIDIA H200"


def test_a_field_is_a_whole_number_of_any_size(rig, monkeypatch) -> None:
    rig.gpu(0).set({"field.230": 7, "field.231": 2**40})
    with rig.library.session() as nvml:
        handle = nvml.handle(rig.gpu(0).uuid)
        assert [nvml.field(handle, number) for number in (230, 231, 232)] == [7, 2**40, None]
        monkeypatch.setattr(library, "_NUMBERS", {})
        with pytest.raises(DeviceError, match="not an integer"):
            nvml.field(handle, 230)


def test_an_event_set_is_freed_before_nvml_closes(rig) -> None:
    with rig.library.session() as nvml:
        kept, freed = nvml.events(), nvml.events()
        nvml.free(freed)
    rig.library.close()
    calls = [call for _, call, _ in rig.machine.calls()]
    assert calls[-3:] == ["nvmlEventSetFree", "nvmlEventSetFree", "nvmlShutdown"]
    name_of(rig)
    rig.library.close()
    assert [call for _, call, _ in rig.machine.calls()].count("nvmlEventSetFree") == 2
    assert kept is not freed


def test_an_event_set_that_cannot_be_freed_prevents_a_reset(rig) -> None:
    with rig.library.session() as nvml:
        nvml.events()
    rig.machine.fail("nvmlEventSetFree", pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(DeviceError, match="cannot close NVML"):
        rig.library.release_driver()
    assert rig.machine.clients() == ()
    assert name_of(rig) == "NVIDIA H200"
    rig.library.release_driver()
    rig.library.reacquire_driver()
