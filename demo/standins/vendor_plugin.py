"""A vendor's device plugin that meets the kubelet as NVIDIA's does.

Its socket is always in the kubelet's directory. It registers in the directory that it is told, and again after each new
``kubelet.sock`` there. It keeps nothing: after a restart it calls every device Healthy.
python -m demo.standins.vendor_plugin --kubelet-dir D --registers-in D --devices ID,...
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
from asyncinotify import Inotify, Mask

from demo.standins.do_nothing_plugin import DoNothingPlugin, until_sigterm, variable

RESOURCE = "nvidia.com/gpu"


class VendorPlugin(DoNothingPlugin):
    """``begin`` returns at once: it registers as soon as somebody answers."""

    def __init__(self, kubelet_dir: Path, registers_in: Path, ids: Iterable[str], resource: str = RESOURCE) -> None:
        socket = f"nvidia-{resource.rpartition('/')[2]}.sock"
        super().__init__(kubelet_dir, ids, resource=resource, socket=socket, prestart=False, answer=variable)
        self.directory = registers_in
        self._staying: asyncio.Task[None] | None = None

    async def begin(self) -> VendorPlugin:
        """Serve and register, again and again, until ``stop``."""
        inotify = Inotify()
        inotify.add_watch(self.directory, Mask.CREATE | Mask.MOVED_TO)
        self._staying = asyncio.create_task(self._stay(inotify))
        return self

    async def stop(self) -> None:
        """End it, as a signal would."""
        if self._staying is not None:
            self._staying.cancel()
            await asyncio.wait({self._staying})
        await super().stop()

    async def _stay(self, inotify: Inotify) -> None:
        with inotify:
            while True:
                await self.serve()
                with suppress(grpc.aio.AioRpcError):  # nobody answers, or a hook refuses: the next socket counts
                    await self.register()
                async for event in inotify:
                    if event.name == Path("kubelet.sock"):
                        break
                await super().stop()


async def _run(plugin: VendorPlugin) -> None:
    await plugin.begin()
    await until_sigterm()
    await plugin.stop()


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m demo.standins.vendor_plugin")
    parser.add_argument("--kubelet-dir", type=Path, required=True)
    parser.add_argument("--registers-in", type=Path, required=True)
    parser.add_argument("--devices", required=True)
    asked = parser.parse_args()
    asyncio.run(_run(VendorPlugin(asked.kubelet_dir, asked.registers_in, asked.devices.split(","))))


if __name__ == "__main__":
    main()
