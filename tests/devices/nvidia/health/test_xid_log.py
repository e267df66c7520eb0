"""Two sources, one log: each event once, in order, under a number that a restart does not change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrubber.core.model import Xid
from scrubber.devices.nvidia.health import xid_log
from scrubber.devices.nvidia.health.kernel_messages import GpuError
from scrubber.devices.nvidia.health.xid_log import GRACE, SAME, XidLog

HERE, THERE = "0000:3b:00", "0000:3c:00"
LOST, APP = GpuError(HERE, 79), GpuError(HERE, 13, 5)


def codes(log: XidLog, place: str = HERE, instance: int | None = None) -> list[int]:
    return [xid.code for xid in log.of(place, instance)]


def tell(log: XidLog, event: GpuError, now: float) -> None:
    """NVML's word, where both clocks are one."""
    log.add_reported(event, int(now * 1e6), now)


def test_an_event_from_both_sources_counts_once_in_either_order():
    log = XidLog()
    assert log.add_logged(LOST, 7_000_000, 7.1)
    tell(log, LOST, 7.2)
    assert not log.settle(7.2 + GRACE)
    tell(log, LOST, 20.0)
    assert log.add_logged(LOST, 20_000_001, 20.1)
    assert not log.settle(20.0 + GRACE)
    assert log.of(HERE) == (Xid(7_000_000, 79, 7.0), Xid(20_000_001, 79, 20.000001))


def test_an_event_that_only_nvml_tells_counts_after_a_moment():
    log = XidLog()
    tell(log, LOST, 5.0)
    assert not log.settle(5.0 + GRACE / 2)
    assert log.of(HERE) == ()
    assert log.settle(5.0 + GRACE)
    assert log.of(HERE) == (Xid(5_000_000, 79, 5.0),)


def test_nvml_events_get_kernel_time_and_wait_on_our_clock():
    log = XidLog()
    log.add_reported(LOST, 3_000_000, 5.0)
    assert not log.settle(5.0 + GRACE / 2)
    assert log.settle(5.0 + GRACE)
    log.add_logged(GpuError(HERE, 48), 4_000_000, 6.0)
    assert log.of(HERE) == (Xid(3_000_000, 79, 3.0), Xid(4_000_000, 48, 4.0))


def test_a_late_kernel_message_is_not_a_second_event():
    log = XidLog()
    tell(log, LOST, 5.0)
    log.settle(5.5)
    assert not log.add_logged(LOST, 4_900_000, 5.0 + SAME - 0.1)
    assert log.add_logged(LOST, 6_900_000, 7.0)  # that one is
    assert codes(log) == [79, 79]


def test_after_a_while_the_same_code_is_another_event():
    log = XidLog()
    log.add_logged(LOST, 5_000_000, 5.0)
    tell(log, LOST, 5.0 + SAME + 0.1)
    assert log.settle(9.0)
    assert codes(log) == [79, 79]


def test_there_are_as_many_events_as_the_kernel_logs():
    log = XidLog()
    for number in range(5):
        log.add_logged(LOST, 5_000_000 + number, 5.0)
    for _ in range(5):
        tell(log, LOST, 5.1)
    assert not log.settle(6.0)
    assert len(log.of(HERE)) == 5


def test_a_different_code_or_gpu_is_another_event():
    log = XidLog()
    log.add_logged(LOST, 5_000_000, 5.0)
    tell(log, GpuError(HERE, 48), 5.0)
    tell(log, GpuError(THERE, 79), 5.0)
    log.settle(6.0)
    assert (codes(log), codes(log, THERE)) == ([79, 48], [79])


def test_a_kernel_message_of_another_gpu_confirms_no_nvml_event():
    log = XidLog()
    tell(log, LOST, 5.0)
    assert log.add_logged(GpuError(THERE, 79), 5_000_000, 5.0)
    assert log.add_logged(GpuError(HERE, 48), 5_000_000, 5.0)
    assert log.settle(6.0)
    assert (sorted(codes(log)), codes(log, THERE)) == ([48, 79], [79])


def test_event_numbers_always_grow():
    log = XidLog()
    for microseconds in (9, 9, 3, 10):
        log.add_logged(LOST, microseconds, 1.0)
    tell(log, GpuError(HERE, 48), 0.000001)
    log.settle(5.0)
    numbers = [xid.number for xid in log.of(HERE)]
    assert numbers == sorted({*numbers})
    assert len(numbers) == 5
    assert log.of(HERE)[0] == Xid(9, 79, 9e-06)


def test_an_instance_is_hit_alone_by_what_concerns_one_process():
    log = XidLog(whole=lambda code: code != APP.code)
    log.add_logged(APP, 1, 1.0)
    log.add_logged(GpuError(HERE, 95, 5), 2, 1.0)
    log.add_logged(GpuError(HERE, 31), 3, 1.0)
    assert codes(log, instance=5) == [13, 95, 31]
    assert codes(log, instance=6) == [95, 31]
    assert codes(log) == [13, 95, 31]


def test_an_unknown_code_concerns_every_gpu_instance():
    log = XidLog()
    log.add_logged(APP, 1, 1.0)
    assert codes(log, instance=6) == [13]


def test_a_storm_displaces_neither_another_code_nor_another_instance():
    log = XidLog(whole=lambda _code: False)
    log.add_logged(GpuError(HERE, 94, 6), 1, 1.0)
    log.add_logged(LOST, 2, 1.0)
    for number in range(10_000):
        log.add_logged(GpuError(HERE, 94, 5), number + 3, 1.0 + number / 1e5)
        tell(log, GpuError(HERE, 31, 5), 1.0 + number / 1e5)
        log.settle(1.0 + number / 1e5)
    assert codes(log, instance=6) == [94, 79]
    assert len(log.of(HERE)) <= 3 * xid_log.KEPT
    assert len(log._waiting) <= xid_log.AWAITED
    log.settle(99.0)
    assert log.of(HERE)[-1].code == 31


EVENTS = st.builds(GpuError, st.sampled_from([HERE, THERE]), st.sampled_from([13, 79]), st.sampled_from([None, 5]))
PAUSES = st.sampled_from([0.0, 0.1, 1.0, 3.0])
STEPS = st.lists(st.tuples(st.sampled_from(["logged", "nvml", "both"]), EVENTS, PAUSES), max_size=xid_log.KEPT)


@given(STEPS)
def test_no_event_is_lost_and_none_is_invented(steps):
    log, now, logged, nvml = XidLog(), 10.0, 0, 0
    for source, event, later in steps:
        now += later
        if source != "nvml":
            logged += 1
            log.add_logged(event, int(now * 1e6), now)
        if source != "logged":
            nvml += 1
            tell(log, event, now)
        log.settle(now)
    log.settle(now + 1)
    found = [*log.of(HERE), *log.of(THERE)]
    assert max(logged, nvml) <= len(found) <= logged + nvml  # one word of the one stands for one of the other
    for place in (HERE, THERE):
        numbers = [xid.number for xid in log.of(place)]
        assert numbers == sorted({*numbers})
