"""The turns of plugins. tests/plugin/test_plugin_process.py shows a whole update."""

import asyncio
import os
import signal
import socket
import subprocess
import sys

import pytest

from ground import unix_sockets
from plugin.registration import other_plugins, sockets, succession
from plugin.registration.succession import Turn
from tests.patience import WITHIN


@pytest.fixture
async def turns(short_tmp):
    turns = [Turn(short_tmp), Turn(short_tmp), Turn(short_tmp)]
    yield turns
    for turn in turns:
        turn.end()


async def stand_by(turn):
    """Let it wait for its turn; the task that ends with that."""
    waits = asyncio.Event()
    begun = asyncio.create_task(turn.begin(waits.set))
    async with asyncio.timeout(WITHIN):
        await waits.wait()
    return begun


async def test_a_plugin_that_never_registers_holds_up_no_stop(turns, monkeypatch):
    monkeypatch.setattr(succession, "WITHIN", 0.05)
    last, following, _ = turns
    await last.begin(lambda: None)
    last.registered()
    begun = await stand_by(following)
    async with asyncio.timeout(WITHIN):
        await last.hand_over()
        await begun  # it has the turn, although the last one still serves


async def test_a_plugin_has_its_turn_until_it_hands_over(turns):
    last, following, _ = turns
    await last.begin(lambda: None)
    last.registered()
    begun = await stand_by(following)
    await asyncio.sleep(5 * succession.LOOKS_EVERY)  # what is counted is what does not happen meanwhile
    assert not begun.done()
    leaving = asyncio.create_task(last.hand_over())
    async with asyncio.timeout(WITHIN):
        await begun
        assert not leaving.done(), "the last plugin serves until the next one has registered"
        following.registered()
        await leaving


async def test_a_plugin_that_just_starts_overtakes_no_standby(turns):
    last, following, started = turns
    await last.begin(lambda: None)
    last.registered()
    begun = await stand_by(following)
    last.end()  # as if it were killed
    later = await stand_by(started)
    async with asyncio.timeout(WITHIN):
        await begun
        assert not later.done()
        following.end()
        await later


@pytest.mark.parametrize("registers", [False, True], ids=["before it registers", "while it registers"])
async def test_a_stop_of_a_pod_waits_for_the_next_pod(turns, registers):
    """The standby of the same pod gets the turn, and stops as well."""
    last, standby, following = turns
    await last.begin(lambda: None)
    last.registered()
    begun, waits = await stand_by(standby), await stand_by(following)
    leaving = asyncio.create_task(last.hand_over())
    async with asyncio.timeout(WITHIN):
        await begun
        if registers:
            await standby.hand_over()
            standby.registered()
            await asyncio.sleep(5 * succession.LOOKS_EVERY)  # what is counted is what does not happen meanwhile
            assert not leaving.done()
        standby.end()
        await waits
        await asyncio.sleep(5 * succession.LOOKS_EVERY)  # the same
        assert not leaving.done()
        following.registered()
        await leaving


async def test_a_stop_without_a_standby_waits_for_no_plugin(turns):
    last, standby, _ = turns
    await last.begin(lambda: None)
    last.registered()
    begun = await stand_by(standby)
    leaving = asyncio.create_task(last.hand_over())
    async with asyncio.timeout(WITHIN):
        await begun
        standby.end()  # the whole pod stops, and there is no other
        await leaving


async def test_a_plugin_that_stops_on_standby_takes_no_turn(turns):
    last, standby, following = turns
    await last.begin(lambda: None)
    begun = await stand_by(standby)
    begun.cancel()
    standby.end()
    later = await stand_by(following)
    last.end()
    async with asyncio.timeout(WITHIN):
        await later


ANOTHER = """
import asyncio, pathlib, sys
from plugin.registration.succession import Turn

async def take_turns():
    turn = Turn(pathlib.Path(sys.argv[1]))
    await turn.begin(lambda: print(flush=True))
    turn.registered()
    print(flush=True)
    await asyncio.Event().wait()

asyncio.run(take_turns())
"""


@pytest.fixture
async def another(short_tmp):
    """Start a plugin in a process of its own; it stands by, or has its turn."""
    started = []

    async def another() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", ANOTHER, short_tmp, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(WITHIN):
            assert await process.stdout.readline()
        return process

    yield another
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
def watching(turns, monkeypatch):
    """Wait for an event while the last of the turns watches the others."""
    monkeypatch.setattr(other_plugins, "ASKED_EVERY", 0.01)
    monkeypatch.setattr(other_plugins, "ANSWERS_WITHIN", 0.1)

    async def watching(event) -> None:
        watch = asyncio.create_task(turns[-1].watch())
        async with asyncio.timeout(WITHIN):
            await event
        watch.cancel()
        await asyncio.wait({watch})

    return watching


async def test_a_plugin_that_hangs_in_its_turn_is_killed(turns, another, watching):
    """Or it would serve beside its successor once it wakes up."""
    present = await another()
    present.send_signal(signal.SIGSTOP)
    await watching(turns[0].begin(lambda: None))
    assert await present.wait() == -signal.SIGKILL


async def test_plugins_that_waited_for_their_turn_are_killed_too(turns, another, watching, capsys):
    """As after each rolling update. Also the second one that hangs; nobody else is, and nothing else is said."""
    first, second = await another(), await another()

    async def hang_in_turn() -> None:
        first.send_signal(signal.SIGSTOP)
        await second.stdout.readline()  # it has its turn
        second.send_signal(signal.SIGSTOP)
        await turns[0].begin(lambda: None)
        for _ in range(3):  # the questions go on, and this process answers
            await other_plugins._answers(sockets.answers(turns[0]._directory, sockets.PRESENT))

    await watching(hang_in_turn())
    assert [await it.wait() for it in (first, second)] == [-signal.SIGKILL] * 2
    said = capsys.readouterr().out
    assert [said.count(f"pid={it.pid} ") or said.count(f"pid={it.pid}\n") for it in (first, second)] == [1, 1], said
    assert "cannot kill" not in said


async def test_no_process_is_killed_in_the_place_of_another(turns, monkeypatch):
    """By the time of the kill, the one that was silent may have ended; and a process that asks does not hang."""
    await turns[0].begin(lambda: None)
    path = sockets.answers(turns[0]._directory, sockets.PRESENT)
    assert not other_plugins._kill(path), "itself"
    sleeps = await asyncio.create_subprocess_exec("sleep", "60")
    listeners = iter([sleeps.pid, os.getpid()])
    monkeypatch.setattr(unix_sockets, "listener", lambda _path: next(listeners))
    assert not other_plugins._kill(path), "a process that listens no longer"
    sleeps.terminate()
    assert await sleeps.wait() == -signal.SIGTERM


async def test_a_standby_that_hangs_holds_up_no_plugin(turns, another, watching):
    present, started, _ = turns
    await present.begin(lambda: None)
    present.registered()
    (await another()).send_signal(signal.SIGSTOP)
    begun = await stand_by(started)
    present.end()
    await watching(begun)


async def test_a_plugin_that_answers_late_keeps_its_turn(another, watching, monkeypatch):
    present, answers, enough = await another(), other_plugins._answers, asyncio.Event()
    answered: list[bool] = []

    async def asked(path) -> bool:
        """Each second question meets a plugin that is stopped."""
        if path.name == "next.ask":  # nobody's turn is next
            return True
        wakes = answered[-1:] == [False]
        present.send_signal(signal.SIGCONT if wakes else signal.SIGSTOP)
        monkeypatch.setattr(other_plugins, "ANSWERS_WITHIN", WITHIN if wakes else 0.1)
        answered.append(await answers(path))
        if len(answered) == 5:
            enough.set()
        return answered[-1]

    monkeypatch.setattr(other_plugins, "_answers", asked)
    await watching(enough.wait())
    assert (answered[:5], present.returncode) == ([False, True, False, True, False], None)


async def test_an_answer_that_waits_for_who_asks_counts(short_tmp, monkeypatch):
    """Its loop was held up for longer than the other had time to answer."""
    monkeypatch.setattr(other_plugins, "ANSWERS_WITHIN", 0)
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(os.fspath(short_tmp / "ask"))
        plugin.listen()

        def answer() -> None:
            plugin.accept()[0].close()

        asks = asyncio.ensure_future(other_plugins._answers(short_tmp / "ask"))
        asyncio.get_running_loop().call_soon(answer)
        assert await asks
