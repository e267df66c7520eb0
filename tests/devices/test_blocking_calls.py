"""A driver call that never returns harms only its own device."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from scrubber.devices.base import DeviceError, ShortageError
from scrubber.devices.blocking_calls import Caller, UnresponsiveError, in_turn
from tests.patience import WITHIN

SOON = 0.02
TIME_FOR_ONE = 1.0  # seconds: the first question has an answer by then, on a busy machine too
LONG = 60.0  # more than a test waits for anything


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Calls that wait for it hang until the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def released(caller: Caller) -> None:
    while caller.stuck():  # noqa: ASYNC110 -- a thread does not report it
        await asyncio.sleep(0.001)


async def test_after_an_error_the_same_call_can_be_repeated() -> None:
    caller = Caller()
    with pytest.raises(ZeroDivisionError):
        await caller.ask("a", lambda: 1 // 0, LONG)
    assert await caller.ask("a", lambda: 42, LONG) == 42


async def test_no_second_call_begins_before_a_stuck_one_returns(gate: threading.Event) -> None:
    caller, called = Caller(), threading.Event()
    with pytest.raises(UnresponsiveError, match="did not answer"):
        await caller.ask("a", gate.wait, SOON)
    assert caller.stuck() == {"a"}
    async with asyncio.timeout(WITHIN):
        for _ in range(100):
            with pytest.raises(UnresponsiveError, match="has not returned"):
                await caller.ask("a", called.set, LONG)
    assert not called.is_set()
    gate.set()
    await released(caller)
    assert await caller.ask("a", lambda: 42, LONG) == 42


async def test_a_hanging_driver_is_blamed_on_a_busy_node_too(gate: threading.Event) -> None:
    caller, errors = Caller(), set[type[Exception]]()
    while UnresponsiveError not in errors:
        with pytest.raises((UnresponsiveError, ShortageError)) as late:
            await caller.ask("a", gate.wait, TIME_FOR_ONE)
        errors.add(late.type)
        await asyncio.sleep(SOON)


async def test_many_stuck_keys_do_not_starve_another(gate: threading.Event) -> None:
    caller = Caller()
    asked = [caller.ask(f"stuck-{number}", gate.wait, SOON) for number in range(20)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(outcome, UnresponsiveError) for outcome in outcomes)
    assert await caller.ask("healthy", lambda: 42, LONG) == 42


async def test_a_key_has_one_call_at_a_time() -> None:
    caller = Caller()
    running, most, lock = 0, 0, threading.Lock()

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1

    await asyncio.gather(*(caller.ask("a", call, LONG) for _ in range(20)))
    assert most == 1


async def test_waiting_callers_fail_at_once_when_the_call_is_stuck(gate: threading.Event) -> None:
    caller = Caller()
    asked = [caller.ask("a", gate.wait, SOON), *(caller.ask("a", gate.wait, LONG) for _ in range(5))]
    async with asyncio.timeout(WITHIN):
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(outcome, UnresponsiveError) for outcome in outcomes)


async def test_a_callers_short_deadline_does_not_make_a_call_stuck(gate: threading.Event) -> None:
    caller = Caller()
    first = asyncio.create_task(caller.ask("a", gate.wait, LONG))
    await asyncio.sleep(0)
    with pytest.raises(UnresponsiveError, match="other calls took the whole"):
        await caller.ask("a", gate.wait, SOON)
    assert caller.stuck() == frozenset()
    gate.set()
    assert await first is True


async def test_a_cancelled_caller_does_not_free_a_running_key(gate: threading.Event) -> None:
    caller = Caller()
    asking = asyncio.create_task(caller.ask("a", gate.wait, LONG))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    with pytest.raises(UnresponsiveError, match="other calls took the whole"):
        await caller.ask("a", lambda: 42, SOON)
    gate.set()
    assert await caller.ask("a", lambda: 42, LONG) == 42


async def test_threads_are_used_again() -> None:
    caller = Caller()
    names = {await caller.ask(str(number), threading.get_ident, LONG) for number in range(50)}
    assert len(names) == 1


def test_the_exit_does_not_wait_for_a_stuck_call() -> None:
    code = """
import asyncio, threading
from scrubber.devices.blocking_calls import Caller, UnresponsiveError, in_turn

async def main():
    try:
        await Caller().ask("a", threading.Event().wait, 0.01)
    except UnresponsiveError:
        print("told")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=WITHIN, check=True)
    assert (done.stdout, done.stderr) == (b"told\n", b"")


async def test_a_failed_call_does_not_stop_the_calls_after_it() -> None:
    def refused() -> int:
        raise DeviceError("it is lost")

    assert await in_turn(Caller(), "all", {"a": lambda: 1, "b": refused, "c": lambda: 3}, LONG) == {"a": 1, "c": 3}


async def test_calls_before_a_hanging_one_get_their_answers(gate: threading.Event) -> None:
    caller = Caller()
    questions = {"a": lambda: True, "b": gate.wait, "c": lambda: True}
    assert await in_turn(caller, "all", questions, TIME_FOR_ONE) == {"a": True}
    assert await in_turn(caller, "all", {"c": lambda: True}, LONG) == {}
    gate.set()
    await released(caller)
    assert await in_turn(caller, "all", questions, LONG) == {"a": True, "b": True, "c": True}
