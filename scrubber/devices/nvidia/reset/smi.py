"""``nvidia-smi --gpu-reset``: started, ended with all its children when it is late, and understood.

When the service kills the worker child that started it, it is left to itself, for a reset cannot be called back. It may
or may not have the device open while it runs: what keeps everybody else away is the lock that it inherits (``locks``).
"""

from __future__ import annotations

import os
import signal
import subprocess

from scrubber.devices.nvidia.reset.attempt import Attempt, Done, InUse, NoPermission, ResetFailed, Stuck, Unsupported

PROGRAM = "nvidia-smi"
_ENDS_WITHIN = 2.0  # seconds at most; who is killed and has not ended by then is stuck in the driver
_ENDING = 0.1  # of the time that it had
_LONGEST = 300  # characters of what it said that are told
_IN_USE = ("in use by", "being used by", "is the primary gpu")
_UNSUPPORTED = ("not supported", "unsupported")
_NO_PERMISSION = ("insufficient permission", "does not have permission", "permission denied")
_STATUS_UNSUPPORTED, _STATUS_NO_PERMISSION = 3, 4
_STATUSES = {  # the others that it documents
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
    """Have it reset one device, and it alone. ``held``: open files that it inherits."""
    try:
        process = subprocess.Popen(
            (PROGRAM, "--gpu-reset", "-i", uuid),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its children are of its group, so that they end with it
            env=os.environ | {"LC_ALL": "C"},
            pass_fds=held,
        )
    except OSError as error:
        return Unsupported(f"{PROGRAM} cannot be started ({error.strerror})")
    try:
        said, _ = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        return _put_down(process, within)
    return understood(process.returncode, said.decode(errors="replace"))


def understood(status: int, said: str) -> Attempt:
    """What its exit status and its words mean. In use is believed whatever the status, done only of both together."""
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
    told = "".join(letter if letter.isprintable() else " " for letter in said)
    return f"{PROGRAM} ended with status {status}{meaning}: {' '.join(told.split())[:_LONGEST] or 'it said nothing'}"


def _put_down(process: subprocess.Popen[bytes], within: float) -> Attempt:
    """End it and whatever it started."""
    os.killpg(process.pid, signal.SIGKILL)  # not collected yet, so the group is still its own
    try:
        process.communicate(timeout=min(_ENDS_WITHIN, _ENDING * within))
    except subprocess.TimeoutExpired:
        if process.stdout is not None:
            process.stdout.close()
        return Stuck(f"{PROGRAM} (pid {process.pid}) was not done within {within:g} s and cannot be killed")
    return ResetFailed(f"{PROGRAM} was not done within {within:g} s and was killed")
