"""Runs ``nvidia-smi --gpu-reset``, kills it with all its children when it is late, and interprets its answer.

If the service kills the worker that started the tool, the tool runs on, because a reset cannot be cancelled. The tool
may not always have the device open: the lock that it inherits (``locks``) keeps other workers away.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import NoReturn

from scrubber.devices.base import DeviceError, NotNowError

PROGRAM = "nvidia-smi"
_FAILED = f"cannot reset: {PROGRAM}"
_ENDS_WITHIN = 2.0  # seconds at most; a killed process that lives longer is stuck in the driver
_ENDING = 0.1  # of the time limit
_LONGEST = 300  # characters of its output in a message
_IN_USE = ("in use by", "being used by", "is the primary gpu")
_UNSUPPORTED = ("not supported", "unsupported")
_NO_PERMISSION = ("insufficient permission", "does not have permission", "permission denied")
_STATUS_UNSUPPORTED, _STATUS_NO_PERMISSION = 3, 4
_STATUSES = {  # the other documented statuses
    2: "a wrong argument",
    6: "no such device",
    8: "power cables that are not attached",
    9: "a driver that is not loaded",
    10: "a problem with interrupts",
    12: "no NVML library",
    13: "an NVML library that is too old",
    14: "a damaged InfoROM",
    15: "a device that has fallen off the bus",
}


class ResetStuckError(DeviceError):
    """A reset that still runs and cannot be killed: NVML must not be called for this device."""


def reset(uuid: str, within: float, *held: int) -> None:
    """Have the tool reset one device only; returns when it reports a reset. ``held``: open files that it inherits.

    NotNowError if the tool did nothing, which is no fault of the device. After any other DeviceError, what the attempt
    did to the device is not known.
    """
    try:
        process = subprocess.Popen(
            (PROGRAM, "--gpu-reset", "-i", uuid),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its children join its group and can be killed with it
            env=os.environ | {"LC_ALL": "C"},
            pass_fds=held,
        )
    except OSError as error:
        raise NotNowError(f"{_FAILED}: it cannot be started ({error.strerror})") from error
    try:
        said, _ = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        _kill(process, within)
    check(process.returncode, said.decode(errors="replace"))


def check(status: int, said: str) -> None:
    """Raise what exit status and output mean. The output alone can say in use; a reset needs both."""
    words = said.lower()
    if any(fragment in words for fragment in _IN_USE):
        why = "the driver knows a client that no observation shows: find it, or reboot the node"
        raise NotNowError(f"{_FAILED}: {why}")
    if status == 0 and "successfully reset" in words:
        return
    if status == _STATUS_NO_PERMISSION or any(fragment in words for fragment in _NO_PERMISSION):
        raise NotNowError(f"{_FAILED}: it takes root and CAP_SYS_ADMIN")
    if status == _STATUS_UNSUPPORTED or any(fragment in words for fragment in _UNSUPPORTED):
        raise NotNowError(f"{_FAILED}: it says that this device cannot be reset")
    raise DeviceError(f"{_FAILED}: {_failure(status, said)}")


def _failure(status: int, said: str) -> str:
    meaning = f" ({_STATUSES[status]})" if status in _STATUSES else ""
    printable = "".join(letter if letter.isprintable() else " " for letter in said)
    return f"it ended with status {status}{meaning}: {' '.join(printable.split())[:_LONGEST] or 'it said nothing'}"


def _kill(process: subprocess.Popen[bytes], within: float) -> NoReturn:
    os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so no other process has this group
    try:
        process.communicate(timeout=min(_ENDS_WITHIN, _ENDING * within))
    except subprocess.TimeoutExpired:
        if process.stdout is not None:
            process.stdout.close()
        raise ResetStuckError(
            f"{_FAILED}: it (pid {process.pid}) was not done within {within:g} s and cannot be killed: reboot the node"
        ) from None
    raise DeviceError(f"{_FAILED}: it was not done within {within:g} s and was killed")
