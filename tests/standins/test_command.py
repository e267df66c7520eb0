"""``python -m demo.standins`` as a process of its own, with a plugin in this one."""

import asyncio
import signal
import sys

import pytest

from demo.standins.do_nothing_plugin import RESOURCE as GPU
from tests.patience import WITHIN


class Command:
    def __init__(self, process) -> None:
        self.process = process

    async def hear(self, words):
        """Read up to the line that holds these words."""
        received: list[str] = []
        async with asyncio.timeout(30):
            while words not in (line := (await self.process.stdout.readline()).decode()):
                assert line, f"did not say {words!r}: {received}"
                received.append(line)
        return line.rstrip()

    def say(self, line):
        self.process.stdin.write(line.encode() + b"\n")

    async def end(self):
        self.process.stdin.close()
        return await asyncio.wait_for(self.process.wait(), WITHIN)


@pytest.fixture
async def command(directory):
    (directory / "r").mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "demo.standins", "--directory", directory, "--registry", directory / "r",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    started = Command(process)
    await started.hear("kubelet: serving on")
    yield started
    if process.returncode is None:
        process.kill()
    await process.wait()


async def test_it_prints_registrations_and_calls_and_runs_pods(command, node):
    plugin = await node.plugin(ids="01").begin()
    assert await command.hear("register") == "register example.com/gpu at do-nothing.sock: ok"
    assert await command.hear("list") == "list example.com/gpu: 0=Healthy 1=Healthy"
    plugin.show(g1="Unhealthy")
    assert await command.hear("list") == "list example.com/gpu: 0=Healthy 1=Unhealthy"
    command.say(f"run p {GPU}=1")
    assert await command.hear("pod p") == "pod p: Running"
    assert await command.hear("pod p") == "pod p: c0 running"
    command.say("restart p")
    assert await command.hear("PreStart") == "call PreStartContainer example.com/gpu 0"
    command.say(f"run q init:{GPU}=1")
    assert "requested number of devices unavailable" in await command.hear("pod q: Failed")
    command.say("delete p")
    await command.hear("pod p: c0 terminated")
    assert await command.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_command_while_stdin_is_open(command, number):
    command.process.send_signal(number)
    assert await asyncio.wait_for(command.process.wait(), WITHIN) == 0
