"""``python -m demo.standins --directory D``: a kubelet to try a device plugin with, controlled by lines on stdin."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from demo.standins.console import HELP, Console, write_line
from demo.standins.kubelet import Kubelet


async def serve(directory: Path, registry: Path | None) -> None:
    """Serve until the end of stdin, or a signal."""
    loop, main_task = asyncio.get_running_loop(), asyncio.current_task()
    assert main_task is not None  # noqa: S101 - narrows the type
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, main_task.cancel)  # wakes the event loop; Python's own handler may not
    kubelet = Kubelet(directory, registry=registry, logs=directory / "pods")
    await kubelet.start()
    console = Console(kubelet)
    watching = asyncio.create_task(kubelet.until(console.report_changes, within=None))
    write_line(f"kubelet: serving on {directory / 'kubelet.sock'}")
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    threading.Thread(target=feed, args=(loop, lines), daemon=True).start()
    try:
        while (line := await lines.get()) is not None:
            await console.run(line)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await kubelet.stop()


def feed(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str | None]) -> None:
    """Read stdin in a thread: a terminal, a pipe or a file must not block the event loop or the end."""
    with open(0, "rb", buffering=0, closefd=False) as stdin, suppress(RuntimeError):  # the event loop may be closed
        for line in stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.decode(errors="replace"))
        loop.call_soon_threadsafe(lines.put_nowait, None)


def main(arguments: list[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.standins",
        description="A kubelet to try a device plugin with. Lines on stdin:\n\n" + HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--directory", type=Path, required=True, help="directory for kubelet.sock; it must exist")
    parser.add_argument("--registry", type=Path, help="a plugins_registry directory to watch; it must exist")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(serve(options.directory, options.registry))
    except asyncio.CancelledError:
        return  # a signal: a clean end
    except (OSError, ValueError) as error:
        parser.error(f"cannot serve in {options.directory}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
