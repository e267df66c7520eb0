"""Loop devices: with one, the memory of a simulated GPU is a device node with a number, like that of a real GPU.

For trials only. It takes root and /dev/loop-control; elsewhere, the memory is a file. A loop device outlives the
service, and ends with ``detach`` or a reboot. What is written through it is in its file once nobody has it open.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from contextlib import ExitStack
from pathlib import Path

from ground import boot, private_files

_CONTROL = Path("/dev/loop-control")
_MAJOR = 7
_GET_FREE, _CONFIGURE, _DETACH = 0x4C82, 0x4C0A, 0x4C01  # linux/loop.h
_ZERO = 0x127F  # BLKZEROOUT of linux/fs.h
_BLOCK = 4096
_INFO = struct.Struct("=5Q4I64s64s32s2Q")  # struct loop_info64
_CONFIG = struct.Struct(f"=2I{_INFO.size}s64x")  # struct loop_config


def can_attach(memory_bytes: int) -> bool:
    """Whether this process can make a loop device of so many bytes."""
    return os.geteuid() == 0 and memory_bytes % _BLOCK == 0 and os.access(_CONTROL, os.R_OK | os.W_OK)


def leads_to(node: Path, cells: Path) -> bool:
    """Whether the node is that of the loop device that ``attach`` put over this file, in this boot.

    The kernel counts what it puts over files. It says of the file no more than its path in the mount namespace of the
    service that gave it, unless the device is opened: the fence of an earlier run of the service would count that.
    """
    try:
        return node.is_block_device() and _attachment(node, cells) == _kept(cells).read_text()
    except OSError:
        return False


def _attachment(node: Path, cells: Path) -> str:
    """What is different for each file, and each time that a file is put behind a number."""
    number = node.stat().st_rdev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    (device / "loop").stat()  # it is there while a file is
    return f"{boot.boot_id()} {(device / 'diskseq').read_text().strip()} {cells.stat().st_ino}"


def _kept(cells: Path) -> Path:
    return cells.with_name(f"{cells.name}.loop")


def attach(cells: Path, node: Path) -> None:
    """Put a new loop device over the file, and its node into this place. Raises OSError."""
    new = node.with_name(f".{node.name}")
    new.unlink(missing_ok=True)  # of a start that was killed
    with ExitStack() as closing:
        control = _opened(_CONTROL, closing)
        fcntl.flock(control, fcntl.LOCK_EX)  # another service would find the same device free
        _make_node(new, fcntl.ioctl(control, _GET_FREE))
        closing.callback(new.unlink, missing_ok=True)
        name = os.fsencode(cells)[-63:]  # for people, who list loop devices
        config = _CONFIG.pack(_opened(cells, closing), 0, _INFO.pack(*(0,) * 9, name, b"", b"", 0, 0))
        fcntl.ioctl(_opened(new, closing), _CONFIGURE, config)
        private_files.replace(_kept(cells), _attachment(new, cells).encode(), durable=False)
        new.rename(node)


def _make_node(node: Path, number: int) -> None:
    try:
        os.mknod(node, stat.S_IFBLK | 0o600, os.makedev(_MAJOR, number))
    except PermissionError as error:
        raise PermissionError(error.errno, "a device node takes the capability CAP_MKNOD", str(node)) from error


def detach(node: Path) -> None:
    """Take the loop device off its file, at the latest when nobody has it open any more. Raises OSError."""
    device = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, _DETACH)
    finally:
        os.close(device)


def zero(device: int, offset: int, length: int) -> None:
    """Zeros, in new pages of the kernel: who has kept the old ones does not see what is written later."""
    fcntl.ioctl(device, _ZERO, struct.pack("=2Q", offset, length))


def _opened(file: Path, closing: ExitStack) -> int:
    handle = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    closing.callback(os.close, handle)
    return handle
