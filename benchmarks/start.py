"""How long people and tests wait for a start: of the service, of the plugin, and of a verb.

The ledger of the service knows its devices already. Processor time varies less than time on a machine that is busy.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from benchmarks import processes, rig
from benchmarks.figures import Figure, quantile
from demo.stage import Stage
from ground import paths
from scrub_api import last_list, scrub_pb2

GPUS = 8


async def measure(*, quick: bool) -> list[Figure]:
    """Stop and start again, several times."""
    service, plugin, plugin_work, alone, status = [], [], [], [], []
    async with rig.service(GPUS) as stage:
        for _ in range(3 if quick else 11):
            await stage.service.end(signal.SIGTERM)
            _leave_list(stage)
            alone.append((await _plugin_start(stage))[0])
            began = time.perf_counter()
            await stage.start()
            service.append(time.perf_counter() - began)
            await rig.all_clean(stage)
            seconds, work = await _plugin_start(stage)
            plugin.append(seconds)
            plugin_work.append(work)
            status.append(await asyncio.to_thread(_status_processor_time, stage))
    names = {
        f"start to first answer, {GPUS} devices: median": (service, "<= 0.5 s"),
        "plugin start to registered: median": (plugin, "<= 0.3 s"),
        "plugin start to registered, processor time: median": (plugin_work, "<= 0.3 s"),
        "plugin start to registered, the service away: median": (alone, "<= 0.3 s"),
        "`autoclave status`, processor time: median": (status, "<= 0.15 s"),
    }
    return [Figure(name, quantile(times, 0.5), "s", len(times), aim) for name, (times, aim) in names.items()]


def _leave_list(stage: Stage) -> None:
    """What a service whose fence holds pods leaves behind."""
    devices = [
        scrub_pb2.ReportedDevice(uuid=uuid, healthy=True, resource="nvidia.com/gpu", index=index, waits=True)
        for index, uuid in enumerate(stage.uuids)
    ]
    response = scrub_pb2.WatchResponse(devices=devices, silence_seconds=last_list.LONGEST)
    last_list.write(paths.last_list(stage.root / "run"), last_list.stamped(response))


async def _plugin_start(stage: Stage) -> tuple[float, float]:
    """The seconds until the plugin is registered, and its processor time meanwhile."""
    began = time.perf_counter()
    await stage.start_node()
    seconds, work = time.perf_counter() - began, processes.used(stage.plugin.pid)
    await stage.plugin.end(signal.SIGTERM)
    await stage.kubelet.kill()
    return seconds, work


def _status_processor_time(stage: Stage) -> float:
    """User and system time of the whole process."""
    nowhere = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    command = (sys.executable, "-m", "autoclave", "status", "--run-dir", str(stage.root / "run"))
    _, status, used = os.wait4(os.posix_spawn(command[0], command, os.environ, file_actions=[nowhere]), 0)
    if status != 0:
        raise RuntimeError("`autoclave status` failed")
    return used.ru_utime + used.ru_stime
