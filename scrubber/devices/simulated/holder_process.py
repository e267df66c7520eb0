"""A process that holds a simulated GPU.

``python -m scrubber.devices.simulated.holder_process MEMORY CHIP stay|linger OFFSET...`` writes its stdin to each
offset of the memory, and to both ends of the on-chip memory as far as there is room. It prints its pid and keeps both
open until it is killed. ``linger`` ignores SIGTERM. The module imports little, so that many processes start quickly.
"""

from __future__ import annotations

import os
import signal
import sys

from ground.quantities import quantity


def main(memory: str, chip: str, manner: str, *offsets: str) -> None:
    """Detach from the parent, write, print the pid, and wait for a signal."""
    if os.fork():
        os._exit(0)  # the parent collects this process at once; init collects the child
    if manner == "linger":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    secret = sys.stdin.buffer.read()
    handle = os.open(memory, os.O_RDWR | os.O_CLOEXEC)
    for offset in offsets:
        if os.pwrite(handle, secret, int(offset)) != len(secret):
            raise OSError(f"cannot write {quantity(len(secret), 'byte')} at offset {offset}")
    on_chip = os.open(chip, os.O_RDWR | os.O_CLOEXEC)
    size = os.fstat(on_chip).st_size
    data = secret[: size // 2]
    os.pwrite(on_chip, data, 0)
    os.pwrite(on_chip, data, size - len(data))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.write(1, f"{os.getpid()}\n".encode())
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
