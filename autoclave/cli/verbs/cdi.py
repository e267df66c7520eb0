"""``autoclave cdi``: runs ``nvidia-ctk``, and writes the CDI specification that names GPUs by UUID.

It is the one that NVIDIA's ``nvidia-ctk`` generates, in a file of our own. Container runtimes give out no device that
two files of one directory name. So the file leaves out each device that another specification of the node names, and
is removed when no device is left.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from autoclave.cli import DONE, DURATION, ENVIRONMENT, LATE, options
from autoclave.cli.output import human
from autoclave.doctor.facts import container_toolkit, safe_read
from autoclave.doctor.findings import driver_checks
from autoclave.doctor.node_facts import CdiSpec
from ground import paths, private_files, process_status
from ground.documents.faults import safe
from ground.errors import FatalError, NotReady, Reason, Refused, plain
from ground.quantities import quantity
from plugin.response import DEVICE_ID
from scrubber.fence.kernel import fence
from scrubber.fence.kernel.fence import FenceError
from scrubber.node import own_cgroup

NAME = "autoclave-nvidia.json"
LARGEST = 2**24  # bytes of its output: a specification has some ten thousand
ALL = "all"  # the device that nvidia-ctk adds: all the others
_PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/nvidia/toolkit")
_NOT_FOUND = 127  # exit status of chroot, and of a shell
_KILLED_WITHIN = 5.0
_MESSAGE = re.compile(r'msg="(.*)"$')  # in a line of its log
_LONGEST = 400  # characters of a program's message
_OWN = "autoclave-cdi"  # its control group, below the one that it was started in
_CHUNK = 2**16  # bytes that are read at once
_SHOWN = 5  # names in a message


@click.command(context_settings=ENVIRONMENT)
@click.option(
    "--cdi-dir",
    type=options.PATH,
    multiple=True,
    default=paths.CDI_DIRS,
    help="A directory that container runtimes read; can be repeated. The first one gets the file.",
)
@options.cdi_kind
@click.option(
    "--host-root", type=options.DIRECTORY, default="/", help="Where this process sees the host's root directory."
)
@options.path("--driver-root", "/", "The root of the driver on the host: /run/nvidia/driver with a driver container.")
@click.option(
    "--timeout",
    type=DURATION,
    default="1m",
    help="How long nvidia-ctk may take.",
)
def cdi(cdi_dir: tuple[Path, ...], cdi_kind: str, host_root: Path, driver_root: Path, timeout: float) -> int:
    """Write the CDI specification of this node's GPUs, with nvidia-ctk.

    Container runtimes find a GPU by its name there. This runs `nvidia-ctk cdi generate` of the host, checks that it
    names each GPU by UUID, and writes the file autoclave-nvidia.json. It leaves out GPUs that another specification
    names, because a runtime refuses a GPU that two files name. Run it again after each driver update.
    """
    directories = tuple(dict.fromkeys(directory.resolve() for directory in cdi_dir))
    file = directories[0] / NAME
    read = (spec for directory in directories for spec in container_toolkit.specifications(directory))
    elsewhere = tuple(spec for spec in read if spec.path != str(file))  # what else container runtimes read
    for spec in elsewhere:
        if spec.fault is not None:
            human.warn(f"cannot use {spec.path}: {spec.fault.text}")
    try:
        # nvidia-ctk runs in ``host_root``, and ``driver_root`` is a path in it.
        places = (*_PLACES, str(driver_root / "usr/bin"))
        with _inside_fence():
            output = _run(_command(cdi_kind, driver_root), host_root, places, timeout)
    except NotReady as late:
        human.warn(str(late))
        return LATE
    if fault := _fault(container_toolkit.specification("", output), cdi_kind):
        raise _refused(f"cannot use the output of nvidia-ctk: {fault}")
    human.say(_write(file, json.loads(output), elsewhere))
    return DONE


@contextmanager
def _inside_fence() -> Iterator[None]:
    """Within the context, a control group of this process alone is let through a fence: nvidia-ctk opens all GPUs.

    What it opens is counted. The fence knows neither a new container nor a unit that has just begun.
    """
    with ExitStack() as closing:
        with suppress(FenceError, OSError):  # without the right to ask for it; then nvidia-ctk says what it cannot open
            root = fence.root()
            started_in = own_cgroup.find(root)
            if started_in is not None:
                place = own_cgroup.move_below(started_in, _OWN)
                if place != started_in:
                    closing.callback(_move_back, place, started_in)
                own = place.stat().st_ino
                fence.admit(root, own)
                closing.callback(fence.dismiss, root, own)
        yield


def _move_back(place: Path, started_in: Path) -> None:
    (started_in / "cgroup.procs").write_text(str(os.getpid()))
    with suppress(OSError):  # what nvidia-ctk has left there is in the way
        place.rmdir()


def _run(command: Sequence[str], root: Path, places: Sequence[str], within: float) -> str:
    """What nvidia-ctk prints, from the first of the places that has it."""
    places = tuple(dict.fromkeys(places))
    inside = () if root == Path("/") else ("chroot", str(root))
    try:
        process = subprocess.Popen(
            (*inside, *command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # its children join its group and can be killed with it
            env={"PATH": ":".join(places), "LC_ALL": "C", "TMPDIR": "/tmp"},  # noqa: S108 - it must write there
        )
    except OSError as error:
        raise _refused(_failure(_NOT_FOUND, str(error.strerror), places)) from error
    output, why = _printed(process, within)
    if process.returncode:
        raise _refused(_failure(process.returncode, why, places))
    return output


def _printed(process: subprocess.Popen[bytes], within: float) -> tuple[str, str]:
    """What the process prints until its end, as output and as errors. Refused or NotReady: it was killed."""
    deadline = time.monotonic() + within
    printed: dict[int, bytearray] = {}
    with ExitStack() as pipes, selectors.DefaultSelector() as selector:
        for pipe in filter(None, (process.stdout, process.stderr)):
            selector.register(pipes.enter_context(pipe), selectors.EVENT_READ)
            printed[pipe.fileno()] = bytearray()
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if not ready:
                raise _late(process, within)
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                printed[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
                if len(printed[key.fd]) > LARGEST:
                    end = "and cannot be killed" if _kill(process) else "and was killed; nothing was written"
                    raise _refused(f"nvidia-ctk printed more than {LARGEST} bytes {end}")
    try:
        process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        raise _late(process, within) from None
    output, why = (text.decode(errors="replace") for text in printed.values())
    return output, why


def _uuids(spec: CdiSpec) -> frozenset[str]:
    """The devices that a specification names by UUID."""
    return frozenset(name for name in spec.names if DEVICE_ID.fullmatch(name))


def _fault(spec: CdiSpec, kind: str) -> str:
    """Why the specification cannot be used, and what to do. Empty: it names each device by UUID."""
    update = "update NVIDIA's container toolkit"
    if spec.fault is not None:
        return f"{spec.fault.text}; {update}"
    if spec.kind != kind:
        return f"it is of the kind {safe(spec.kind)}; {update}"
    if not spec.names - {ALL}:
        return "it names no GPU; see whether `nvidia-smi -L` shows one"
    unnamed = sorted(spec.names - {ALL} - _uuids(spec))
    shown = ", ".join(map(safe, unnamed[:_SHOWN])) + (f" and {len(unnamed) - _SHOWN} more" if unnamed[_SHOWN:] else "")
    return f"it names {shown}, and not by UUID; {update}" if unnamed else ""


def _command(kind: str, driver_root: Path) -> list[str]:
    """Only the flags that differ from the defaults: old versions do not know all of them."""
    words = ["nvidia-ctk", "cdi", "generate", "--format=json", "--device-name-strategy=uuid"]
    if driver_root != Path("/"):
        words.append(f"--driver-root={driver_root}")
    if kind != driver_checks.KIND:
        vendor, _, name = kind.partition("/")
        words += [f"--vendor={vendor}", f"--class={name}"]
    return words


def _failure(status: int, why: str, places: Iterable[str]) -> str:
    last = (why.strip().splitlines() or ["it said nothing"])[-1]  # before it, what nvidia-ctk tried
    logged = _MESSAGE.search(last)
    message = plain(logged[1].replace('\\"', '"') if logged else last)[:_LONGEST]
    if status == _NOT_FOUND:
        remedy = (
            "install NVIDIA's container toolkit there, or write the specification yourself (without `cdi.generate`)"
        )
        return f"cannot run nvidia-ctk, which is in none of {', '.join(places)} of the host: {message}; {remedy}"
    return f"nvidia-ctk ended {process_status.ending(status)}: {message}; nothing was written"


def _late(process: subprocess.Popen[bytes], within: float) -> NotReady:
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    unkillable = _kill(process)
    if ended:
        why = f"nvidia-ctk has ended, and a process that it started still has its output open after {within:g} s"
        return NotReady(Reason.TIMED_OUT, why, "end that process")
    why = f"nvidia-ctk did not end within {within:g} s"
    if unkillable:
        return NotReady(Reason.TIMED_OUT, f"{why} and cannot be killed (pid {process.pid})", "reboot the node")
    return NotReady(Reason.TIMED_OUT, f"{why} and was killed", "see whether `nvidia-smi -L` answers on the node")


def _kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill the process and its children. Returns whether it does not end."""
    os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so no other process has this group
    try:
        process.wait(_KILLED_WITHIN)
    except subprocess.TimeoutExpired:
        return True
    return False


def _refused(message: str) -> Refused:
    return Refused(Reason.VENDOR, message, "run `nvidia-ctk cdi generate` on the node and read its error")


def _write(file: Path, made: Mapping[str, Any], elsewhere: Sequence[CdiSpec]) -> str:
    """Have the file name each device that no other specification names. Returns a sentence about what was done."""
    same = [spec for spec in elsewhere if spec.kind == made["kind"]]
    taken = frozenset(name for spec in same for name in spec.names)
    left = [device for device in made["devices"] if device["name"] not in taken]
    count = sum(device["name"] != ALL for device in left)
    try:
        if not count:
            done = f"removed {file}" if file.is_file() else "wrote nothing"
            file.unlink(missing_ok=True)
            named_by = ", ".join(sorted(spec.path for spec in same if _uuids(spec)))
            remedy = "generate that again after each driver update, or remove it and run this again"
            return f"{done}: each GPU is named by UUID in {named_by} already; {remedy}"
        what = f"it names {quantity(count, 'device')} by UUID"
        return f"{file} {'is new' if _replaced(file, {**made, 'devices': left}) else 'has not changed'}: {what}"
    except OSError as error:
        remedy = "name a directory that this user can write with --cdi-dir"
        raise FatalError(f"cannot write {file}: {error.strerror}", remedy) from error


def _replaced(file: Path, document: Mapping[str, Any]) -> bool:
    """Whether the file had to change. A runtime never reads half of it."""
    text = json.dumps(document, indent=1) + "\n"
    if safe_read.text(file) == text:
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    private_files.demand_folder(file.parent)
    private_files.replace(file, text.encode(), private_files.READABLE_FILE)
    return True
