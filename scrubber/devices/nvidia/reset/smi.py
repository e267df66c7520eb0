"""Runs ``nvidia-smi --gpu-reset``, kills it with all its children when it is late, and interprets its answer.

If the service kills the worker that started the tool, the tool runs on, because a reset cannot be cancelled. The tool
may not always have the device open: the lock that it inherits (``locks``) keeps other workers away.
"""

from __future__ import annotations

import os
import signal
import subprocess

from scrubber.devices import shortage
from scrubber.devices.nvidia.reset.attempt import Attempt, Done, InUse, NoPermission, ResetFailed, Stuck, Unsupported

PROGRAM = "nvidia-smi"
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


def reset(uuid: str, within: float, *held: int) -> Attempt:
    """Have the tool reset one device only. ``held``: open files that the tool inherits."""
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
        shortage.demand_none(error)
        return Unsupported(f"{PROGRAM} cannot be started ({error.strerror})")
    try:
        said, _ = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        return _kill(process, within)
    return understood(process.returncode, said.decode(errors="replace"))


def understood(status: int, said: str) -> Attempt:
    """What exit status and output mean. The output alone can say in use; done needs both."""
    words = said.lower()
    if any(fragment in words for fragment in _IN_USE):
        return InUse()
    if status == 0 and "successfully reset" in words:
        return Done()
    if status == _STATUS_NO_PERMISSION or any(fragment in words for fragment in _NO_PERMISSION):
        return NoPermission()
    if status == _STATUS_UNSUPPORTED or any(fragment in words for fragment in _UNSUPPORTED):
        return Unsupported(f"{PROGRAM} says that this device cannot be reset")
    return ResetFailed(_failure(status, said))


def _failure(status: int, said: str) -> str:
    meaning = f" ({_STATUSES[status]})" if status in _STATUSES else ""
    printable = "".join(letter if letter.isprintable() else " " for letter in said)
    return (
        f"{PROGRAM} ended with status {status}{meaning}: {' '.join(printable.split())[:_LONGEST] or 'it said nothing'}"
    )


def _kill(process: subprocess.Popen[bytes], within: float) -> Attempt:
    os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so no other process has this group
    try:
        process.communicate(timeout=min(_ENDS_WITHIN, _ENDING * within))
    except subprocess.TimeoutExpired:
        if process.stdout is not None:
            process.stdout.close()
        return Stuck(f"{PROGRAM} (pid {process.pid}) was not done within {within:g} s and cannot be killed")
    return ResetFailed(f"{PROGRAM} was not done within {within:g} s and was killed")
