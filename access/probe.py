"""The program in each container: opens device nodes of GPUs, and says which. It needs Python 3.8 and nothing else.

``own`` is the container that was given a GPU: it opens its node, keeps it open, and writes a secret into memory that
it allocates. ``try`` is one that was given none: it looks for nodes in some way, opens each one, and, where there is a
driver, allocates memory and looks for the secret. It writes nothing to what is not its own. The answer is one line of
JSON on stdout.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import errno
import glob
import json
import os
import platform
import re
import selectors
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

MOST = 64  # nodes that are tried, and nodes in a list of the answer
LONGEST = 200  # characters of a text in the answer
BLOCK = 2**24  # bytes that are allocated at once
SEARCHED = 2**30  # bytes that an outsider allocates at most
PREFIX = "\0autoclave-access-"  # of the address of a socket: it is no file, so nothing is left of it
WORKING = ("/dev", "/tmp", "/run", "/")  # noqa: S108 - where a node can be made; some mounts let no node open
NEVER = "none"


def number_of(status: os.stat_result) -> str:
    """The number of a device node, such as c:195:0; nothing if it is none."""
    kind = "c" if stat.S_ISCHR(status.st_mode) else "b" if stat.S_ISBLK(status.st_mode) else ""
    return kind and f"{kind}:{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def code_of(error: OSError) -> str:
    """The name of the error, such as EPERM. A time that is over has no number."""
    return errno.errorcode.get(error.errno or errno.ETIMEDOUT, str(error.errno))


def attempt(path: str) -> tuple[int | None, str]:
    """A descriptor of this node, or the name of the error with which the kernel refuses it."""
    why = NEVER
    for access in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC), ""
        except OSError as error:
            why = code_of(error)
    return None, why


class Probe:
    """Collects what was seen, opened and refused."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.looked: list[str] = []
        self.seen: list[str] = []
        self.refused: list[str] = []
        self.opened: dict[str, int] = {}  # a node, and its descriptor
        self.numbers = {number for number in options.numbers.split(",") if number}
        self.owner = "unasked"

    def try_node(self, path: str, number: str) -> None:
        """Open it, and keep it open until the answer is given."""
        name = f"{path} {number}"[-LONGEST:]
        if name in self.seen or len(self.seen) >= MOST:
            return
        self.seen.append(name)
        descriptor, why = attempt(path)
        if descriptor is None:
            self.refused.append(f"{name} {why}")
        else:
            self.opened[name] = descriptor

    def look(self, under: str = "") -> None:
        """Nodes with the usual names, and nodes with the number of the owner's GPU, whatever their name."""
        self.looked.append(f"{under}{self.options.nodes}"[:LONGEST])
        paths = sorted(glob.glob(glob.escape(under) + self.options.nodes))[:MOST]
        for path in paths:
            try:
                if number := number_of(os.stat(path)):
                    self.try_node(path, number)
            except OSError as error:
                self.refused.append(f"{path[:LONGEST]} {code_of(error)}")
        for folder, _, names in os.walk(f"{under}/dev") if self.numbers else ():
            for path in (os.path.join(folder, name) for name in names[:4096]):
                try:
                    number = number_of(os.lstat(path))
                except OSError:
                    continue
                if number in self.numbers and path not in paths:
                    self.try_node(path, number)

    def make(self) -> None:
        """A node of its own with the number of the owner's GPU."""
        for number in sorted(self.numbers):
            kind, major, minor = number.split(":")
            for folder in WORKING:
                path = os.path.join(folder, f"autoclave-access-{self.options.nonce}")
                self.looked.append(f"mknod {path} {number}")
                try:
                    os.mknod(path, 0o666 | (stat.S_IFCHR if kind == "c" else stat.S_IFBLK),
                             os.makedev(int(major), int(minor)))  # fmt: skip
                except OSError as error:
                    self.refused.append(f"mknod {path} {number} {code_of(error)}")
                    continue
                try:
                    self.try_node(path, number)
                finally:
                    os.unlink(path)
                if self.opened:
                    return

    def enter_roots(self) -> None:
        """The nodes that other processes see in their root directories."""
        self.looked.append("/proc/PID/root")
        known = set()
        for pid in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
            root = f"/proc/{pid}/root"
            try:
                here = os.stat(f"{root}/dev")
            except OSError as error:
                if len(self.refused) < MOST:
                    self.refused.append(f"{root} {code_of(error)}")
                continue
            if (here.st_dev, here.st_ino) not in known:
                known.add((here.st_dev, here.st_ino))
                self.look(root)

    def receive(self, name: str) -> None:
        """An open node from the owner, through a socket."""
        self.looked.append(f"socket {name}")
        with self.call(f"unix:{name}") as connection:
            numbers = array.array("i")
            said, beside, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(MOST * numbers.itemsize))
            for level, kind, data in beside:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        if not numbers:
            self.refused.append("socket EACCES")  # the kernel has dropped it: a security module can do that
        for descriptor in numbers:
            name = f"the owner's descriptor {number_of(os.fstat(descriptor))}"
            self.seen.append(name)
            self.opened[name] = descriptor
        self.believe(said)

    def call(self, address: str) -> socket.socket:
        """A connection to the container that holds the GPU."""
        connection = socket.socket(socket.AF_UNIX if address.startswith("unix:") else socket.AF_INET)
        connection.settimeout(5)
        kind, _, rest = address.rpartition(":")
        connection.connect(PREFIX + rest if kind == "unix" else (kind, int(rest)))
        return connection

    def ask(self, address: str, wait: float) -> None:
        """Whether the owner has its GPU open, by its own words; its numbers are those to look for."""
        ends = time.monotonic() + wait
        self.owner = "silent"
        while True:
            with suppress(OSError), self.call(address) as connection:
                self.believe(connection.recv(4096))
            if self.owner == "holding" or time.monotonic() >= ends:
                return
            time.sleep(0.2)

    def believe(self, said: bytes) -> None:
        """The words of the owner. Descriptors that came with them are closed with the connection."""
        nonce, _, numbers = said.decode(errors="replace").strip().partition(" ")
        if nonce == self.options.nonce and numbers:
            self.owner = "holding"
            self.numbers |= set(numbers.split(",")[:MOST])

    def answer(self, context: str, why: str, secret: str) -> None:
        """Print it."""
        status = shown("/proc/self/status")
        lists = {"looked": self.looked, "seen": self.seen, "opened": list(self.opened), "refused": self.refused}
        line = {
            "nonce": self.options.nonce,
            "control": opens_anything(),
            **{name: [printable(text) for text in texts[:MOST]] for name, texts in lists.items()},
            "context": context,
            "context_why": printable(why),
            "secret": secret,
            "owner": self.owner,
            "variable": printable(os.environ.get("NVIDIA_VISIBLE_DEVICES", "")),
            "user": os.geteuid(),
            "capabilities": (re.findall(r"^CapEff:\s*(\w+)$", status, re.MULTILINE) or [""])[0],
            "driver": (re.findall(r"\b\d+\.\d+(?:\.\d+)?\b", shown("/proc/driver/nvidia/version")) or [""])[0],
            "system": printable(platform.release()),
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def opens_anything() -> bool:
    """Whether this function of opening works at all."""
    descriptor, _ = attempt(os.devnull)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def shown(path: str) -> str:
    """A file of the kernel, as far as it can be read."""
    try:
        with open(path) as file:
            return file.read(65536)
    except OSError:
        return ""


def printable(text: str) -> str:
    """Words on one line, and not too many."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST])


class Cuda:
    """The driver's library, by ctypes."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        """A call of the library; RuntimeError with its status."""
        if status := getattr(self.library, name)(*arguments):
            raise RuntimeError(f"{name} answers {status}")

    def contexts(self) -> Iterator[int]:
        """Make a context on each GPU in turn."""
        count, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        if not count.value:
            raise RuntimeError("cuDeviceGetCount answers no device")
        for index in range(count.value):
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), index)  # a device is its number
            self.call("cuCtxSetCurrent", context)
            yield index

    def allocated(self) -> ctypes.c_uint64 | None:
        """The address of new memory; None if there is no more."""
        address = ctypes.c_uint64()
        try:
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(BLOCK))
        except RuntimeError:
            return None
        return address

    def write(self, secret: bytes) -> None:
        """The secret into one block."""
        address = self.allocated()
        if address is not None:
            self.call("cuMemcpyHtoD_v2", address, secret * (BLOCK // len(secret)), ctypes.c_size_t(BLOCK))

    def finds(self, secret: bytes) -> bool:
        """Whether the secret is in memory that was just allocated, before anything is written there."""
        data = ctypes.create_string_buffer(BLOCK)
        for _ in range(SEARCHED // BLOCK):
            address = self.allocated()
            if address is None:
                return False
            self.call("cuMemcpyDtoH_v2", data, address, ctypes.c_size_t(BLOCK))
            if secret in data.raw:
                return True
        return False


def use_driver(options: argparse.Namespace) -> tuple[str, str, str]:
    """Whether a context can be made, why not, and whether the secret is found."""
    try:
        cuda = Cuda()
    except OSError:
        return "unknown", "there is no library of the driver", "unknown"
    except (RuntimeError, AttributeError) as error:
        return "refused", str(error), "unknown"
    secret, context, found = bytes.fromhex(options.secret), "refused", False
    try:
        for _ in cuda.contexts():
            context = "made"
            if options.deed == "own":
                cuda.write(secret)
                return "made", "", "unknown"
            found = found or cuda.finds(secret)
    except (RuntimeError, AttributeError) as error:
        if context != "made":
            return "refused", str(error), "unknown"
    return context, "", "found" if found else "not found"


def listening(probe: Probe) -> tuple[list[socket.socket], bytes]:
    """Sockets on which the holder is asked, and its words: the nonce, and the numbers of the nodes that it has open."""
    options = probe.options
    words = f"{options.nonce} {','.join(sorted({name.rpartition(' ')[2] for name in probe.opened}))}\n".encode()
    servers: list[socket.socket] = []
    if options.listen:
        servers.append(socket.create_server(("", options.listen)))
    if options.share:
        servers.append(socket.socket(socket.AF_UNIX))
        servers[-1].bind(PREFIX + options.share)
        servers[-1].listen()
    return servers, words


def serve(probe: Probe, servers: list[socket.socket], words: bytes) -> None:
    """Answer callers until the time is over; who calls through a socket of the kernel gets the open nodes, too."""
    ready = selectors.DefaultSelector()
    for server in servers:
        ready.register(server, selectors.EVENT_READ)
    ends = time.monotonic() + probe.options.stay
    while (left := ends - time.monotonic()) > 0:
        if not servers:
            time.sleep(left)
        for key, _ in ready.select(left) if servers else ():
            caller = key.fileobj
            assert isinstance(caller, socket.socket)  # noqa: S101 - nothing else is registered
            connection, _ = caller.accept()
            with connection:
                descriptors = array.array("i", probe.opened.values())
                through = connection.family == socket.AF_UNIX
                beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if through and descriptors else []
                with suppress(OSError):  # the caller has gone
                    connection.sendmsg([words], beside)


def options_of(arguments: list[str]) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("deed", choices=("own", "try"))
    texts = {  # of the owner's GPU; who holds it: HOST:PORT or unix:NAME; the root of the host; names of sockets
        "nonce": "", "secret": "", "nodes": "/dev/nvidia[0-9]*", "numbers": "", "ask": "", "under": "", "receive": "",
        "share": "",
    }  # fmt: skip
    amounts = {"wait": 0.0, "listen": 0, "stay": 0.0}  # seconds of asking, the port of a holder, seconds of holding
    for name, default in {**texts, **amounts}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--leave", action="store_true", help="a process stays behind when this one ends")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Look, open, and say so; then stay as long as was asked for."""
    options = options_of(arguments)
    probe = Probe(options)
    if options.ask:
        probe.ask(options.ask, options.wait)
    if options.receive:
        try:
            probe.receive(options.receive)
        except OSError as error:
            probe.refused.append(f"socket {code_of(error)}")
    elif options.make:
        probe.make()
    elif options.processes:
        probe.enter_roots()
    else:
        probe.look(options.under)
    context = ("unknown", "", "unknown") if options.receive else use_driver(options)
    servers, words = listening(probe)
    if options.leave and os.fork() == 0:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)  # who started the job waits for its output
        serve(probe, servers, words)
        return
    probe.answer(*context)
    if options.stay and not options.leave:
        serve(probe, servers, words)


if __name__ == "__main__":
    main(sys.argv[1:])
