"""What the logs of a whole node say: one id from the kubelet's question to the rows of the ledger, and no names."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from demo.programs import ServiceProgram
from scrubber.devices.simulated import layout
from tests.flows.node import Node

SECRET = "zx-tenant-job"  # noqa: S105 - what a process calls itself


def lines(program: ServiceProgram) -> list[dict[str, Any]]:
    """What a program has said so far."""
    return [json.loads(line) for line in program.log.read_text().splitlines()]


@asynccontextmanager
async def named(tmp_path: Path, node: Node, uuid: str) -> AsyncIterator[int]:
    """A process of the host on a GPU that calls itself something that nobody else does."""
    command = tmp_path / SECRET
    shutil.copy("/bin/sleep", command)
    place = layout.find(node.stage.simulated, uuid)
    process = await node.program("sh", "-c", 'exec "$0" 1000 <"$1" 9<"$2"', command, place.memory, place.chip)
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()


async def test_one_id_joins_a_kubelets_call_and_the_ledgers_rows(node: Node) -> None:
    pod = await node.run("a")
    uuid = node.gpu(pod)
    await node.kubelet.delete(pod)
    await node.clean(uuid)
    await node.stage.plugin.end(signal.SIGTERM)
    asked = {it["hook"]: it for it in lines(node.stage.plugin) if it["event"] == "request granted"}
    answered = {it["request"]: it for it in lines(node.stage.service) if it["event"] == "request granted"}
    for hook, request, kind in (("Allocate", "acquire", "granted"), ("PreStartContainer", "start", "in-use")):
        rows = [row for row in await node.history(uuid, kind) if row.op == asked[hook]["op"]]
        assert asked[hook]["op"] == answered[request]["op"]
        assert asked[hook]["devices"] == answered[request]["devices"] == [uuid]
        assert rows, (hook, [row.op for row in await node.history(uuid, kind)])
    ended = [it for it in lines(node.stage.service) if it["event"] == "job ended" and it["device"] == uuid]
    proven = await node.history(uuid, "scrub-passed")
    assert [(it["op"], it["receipt"] in row.text) for it, row in zip(ended, proven, strict=True)] == [
        (row.op, True) for row in proven
    ]


async def test_no_line_names_a_process_of_somebody_else(tmp_path: Path, node: Node) -> None:
    first, other = node.stage.uuids
    async with named(tmp_path, node, first) as pid:
        await node.reach(first, lambda device: SECRET in device.setback)
        async with node.stage.admin() as admin:
            refused = [it.result async for it in admin.scrub([first])]
            assert any(SECRET in entry.text for entry in (await admin.explain(first)).entries)
        assert refused[-1] is not None
        assert SECRET in refused[-1].why
        await node.said(node.stage.service, '"request": "scrub"')
    pod = await node.run("a")
    assert node.gpu(pod) in (first, other)
    uuid = await node.leave(pod)
    await node.job(uuid)
    async with named(tmp_path, node, uuid):  # it comes in the middle of a scrub
        await node.said(node.stage.service, '"outcome": "failed"')
        await node.reach(uuid, lambda device: SECRET in device.setback)
    said = node.stage.service.log.read_text() + node.stage.plugin.log.read_text()
    assert SECRET not in said
    assert f"a process (pid {pid}, no container)" in said
    [failed] = [it for it in lines(node.stage.service) if it.get("outcome") == "failed"]
    assert "a process (pid " in failed["why"]
    assert [it["event"] for it in lines(node.stage.service) if it.get("op") == failed["op"]] == ["job ended"]  # once
    node.heal(uuid)
