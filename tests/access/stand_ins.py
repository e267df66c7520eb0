"""Stands in for kubectl, docker, podman, srun and scancel: their containers are processes that the kernel isolates.

A container is isolated by a user namespace, so that it makes no device node and looks into no other process, and by a
/dev of its own. GPU 0 is the character device 1:7, GPU 1 is 1:5. ``leaks`` has the ways that are open: their container
is not isolated, or sees all nodes. ``refuses`` has the pods that are refused at admission.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

GPUS = {"gpu0": (1, 7), "gpu1": (1, 5)}
NODES = "/dev/gpu[0-9]*"
MAKE = frozenset({"own-node", "privileged-own-node", "host-pid", "host-dev"})  # these see no node in their /dev
PROGRAMS = ("kubectl", "docker", "podman", "srun", "scancel")
CLIENT = """#!{python} -IS
import json, os, socket, sys
needs = "--filename=-" in sys.argv
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    words = [{program!r}, *sys.argv[1:]]
    server.sendall(json.dumps([words, sys.stdin.read() if needs else "", os.getpid()]).encode() + b"\\n")
    code, out, err, run = json.loads(server.makefile().readline())
if run:
    os.execvp(run[0], run)
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""
INSIDE = 'mount --bind "$1" /dev && shift && exec "$@"'


@dataclass
class Pod:
    """What runs of a pod: for each container its process and its log."""

    manifest: dict[str, Any]
    gpus: list[str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)  # of a pod that failed: reason and message


@dataclass
class Node:
    """One node with its cluster."""

    root: Path
    leaks: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    denied: set[str] = field(default_factory=set)
    refuses_root: bool = False
    not_yet: list[str] = field(default_factory=list)  # why the next pods are refused in a new namespace
    stays: bool = False  # the namespace is not removed
    lingers: bool = False  # the namespace is still being removed
    ends_at_once: bool = False  # the process of a pod that is deleted by force, too
    holds_up_sharing: bool = False  # the pod that has handed its GPU on is not removed before the others
    on_command: Callable[[int], None] = lambda _count: None  # called with the number of each command
    gpus: list[str] = field(default_factory=lambda: ["gpu0"])
    offers: dict[str, list[str]] = field(default_factory=lambda: {"node": ["node-1"], "deviceclass": ["gpu.example"]})
    capacity: dict[str, str] = field(default_factory=lambda: {"cpu": "2", "nvidia.com/gpu": "4"})  # of the node
    healthy: dict[str, str] = field(default_factory=lambda: {"cpu": "2", "nvidia.com/gpu": "4"})  # of the capacity
    hides: bool = False  # the account may not read nodes and device classes
    unplaced: dict[str, str] = field(default_factory=dict)  # of a role: why the scheduler finds no node for its pod
    odd: dict[str, str] = field(default_factory=dict)  # of a role: a program in the place of the probe
    waiting: dict[str, tuple[str, str]] = field(default_factory=dict)  # of a role: why its container does not start
    said: list[list[str]] = field(default_factory=list)  # what was asked of the programs
    pods: dict[str, Pod] = field(default_factory=dict)
    left: list[subprocess.Popen[bytes]] = field(default_factory=list)  # of pods that were deleted by force
    attached: dict[str, int] = field(default_factory=dict)
    namespaces: list[dict[str, Any]] = field(default_factory=list)
    probe: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)

    # -- for the test

    def serve(self) -> Iterator[Path]:
        """The directory with the programs, until the test ends."""
        address, programs, node = str(self.root / "s"), self.root / "programs", self
        programs.mkdir()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                words, text, pid = json.loads(self.rfile.readline())
                with node.lock:
                    answer = node.obey(words, text, pid)
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        for name in PROGRAMS:
            program = CLIENT.format(python=sys.executable, address=address, program=name)
            (programs / name).write_text(program)
            (programs / name).chmod(0o755)
        with socketserver.ThreadingUnixStreamServer(address, Handler) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield programs
            server.shutdown()
        for name in list(self.pods):
            self._end(name)
        for process in self.left:
            process.kill()
            process.wait()

    @property
    def leftovers(self) -> list[str]:
        """What is there: it must be nothing at the end of a run."""
        running = [name for name, pid in self.attached.items() if _runs(pid)]
        own = [str(process.args) for process in self.left if process.poll() is None]
        namespaces = [] if self.stays else self.namespaces
        return [*self.pods, *(each["metadata"]["name"] for each in namespaces), *running, *own]

    # -- commands

    def obey(self, words: list[str], text: str, pid: int) -> tuple[int, str, str, list[str]]:
        """Exit code, what goes to stdout and to stderr, and the program that takes the place of the command."""
        self.said.append(words)
        self.on_command(len(self.said))
        rest = [word for word in words[1:] if not word.startswith("--namespace=")]
        if "--namespace" in rest:
            place = rest.index("--namespace")
            del rest[place : place + 2]
        match [words[0], *rest]:
            case ["kubectl", "auth", "can-i", verb, resource, *part]:
                right = "/".join([f"{verb} {resource}", *(each.removeprefix("--subresource=") for each in part)])
                return int(right in self.denied), "no\n" if right in self.denied else "yes\n", "", []
            case ["kubectl", "create", "configmap", "probe", source]:
                self.probe = source.removeprefix("--from-file=probe.py=")
                return 0, "", "", []
            case ["kubectl", "create", "--filename=-", *more]:
                return self._create(text, dry="--dry-run=server" in more)
            case ["kubectl", "get", "pod", name, "--output=json"]:
                return (0, json.dumps(self._shown(name)), "", []) if name in self.pods else (1, "", "NotFound", [])
            case ["kubectl", "get", "namespace", _, "--output=json"]:
                return 0, json.dumps(self.namespaces[-1]), "", []
            case ["kubectl", "get", kind, "--output=name"]:
                return 0, "".join(f"{kind}/{name}\n" for name in self.offers[kind]), "", []
            case ["kubectl", "get", "node" | "deviceclass" as kind, name, "--output=json"]:
                if self.hides:
                    return 1, "", f'Error from server (Forbidden): {kind} "{name}" is forbidden\n', []
                if name not in self.offers[kind]:
                    return 1, "", f'Error from server (NotFound): {kind} "{name}" not found\n', []
                info = {"kubeletVersion": "v1.37.0", "containerRuntimeVersion": "containerd://2.1", "osImage": "Debian"}
                status = {"nodeInfo": info, "capacity": self.capacity, "allocatable": self.healthy}
                return 0, json.dumps({"metadata": {"name": name}, "status": status}), "", []
            case ["kubectl", "version", "--output=json"]:
                return 0, json.dumps({"serverVersion": {"gitVersion": "v1.37.0"}}), "", []
            case ["kubectl", "logs", pod, container, "--follow"]:
                name = container.removeprefix("--container=")
                process = self.pods[pod].processes[name]
                return 0, "", "", ["tail", "--bytes=+1", "--follow", f"--pid={process.pid}", self._log(pod, name)]
            case ["kubectl", "debug", "owner", *more]:
                command = more[more.index("--") + 1 :]
                added: dict[str, Any] = {"name": "ephemeral-container", "command": command, "args": []}
                self._run(self.pods["owner"], added, self.gpus if "ephemeral-container" in self.leaks else [])
                return 0, "", "", []
            case ["kubectl", "get", kind, name, "--ignore-not-found", "--output=name"]:
                there = name in self.pods if kind == "pod" else bool(self.namespaces)
                return 0, f"{kind}/{name}\n" if there else "", "", []
            case ["kubectl", "delete", "pod", name, "--ignore-not-found", *force, "--wait=false"]:
                if name != "sharing-owner" or not self.holds_up_sharing:
                    self._end(name, later="--force" in force and not self.ends_at_once)
                return 0, "", "", []
            case ["kubectl", "delete", "namespace", _, "--ignore-not-found", "--wait=false"]:
                for name in list(self.pods):
                    self._end(name)
                self._end("owner")
                if self.stays:
                    return 1, "", "error: timed out waiting for the condition", []
                if not self.lingers:
                    self.namespaces.clear()
                return 0, "", "", []
            case ["docker" | "podman", "run", *flags]:
                return self._attached(flags, flags[flags.index("-c") + 1 :], pid)
            case ["docker" | "podman", "ps", *_, flag]:
                name = flag.removeprefix("name=^").removesuffix("$")
                return 0, f"{name}\n" if name in self.attached else "", "", []
            case ["docker" | "podman", "rm", "--force", name]:
                return self._killed(name)
            case ["scancel", flag]:
                return self._killed(flag.removeprefix("--name="))
            case ["srun", *flags] if "-c" in flags:
                return self._attached(flags, flags[flags.index("-c") + 1 :], pid)
            case ["docker" | "podman", "image", "inspect", "--format={{.Id}}", image]:
                return 0, digest(image).removeprefix("sha256:") + "\n", "", []
            case [program, "--version"]:
                return 0, f"{program} 1.0, a stand-in\n", "", []
        raise AssertionError(words)

    # -- pods

    def _create(self, text: str, *, dry: bool) -> tuple[int, str, str, list[str]]:
        for thing in yaml.safe_load_all(text):
            name = thing["metadata"]["name"]
            if thing["kind"] == "Namespace":
                self.namespaces.append(thing)
            if thing["kind"] != "Pod":
                continue
            assert 0 < thing["spec"]["activeDeadlineSeconds"] <= 900
            if self.not_yet:
                return 1, "", f'Error from server (Forbidden): pods "{name}" is forbidden: {self.not_yet.pop(0)}\n', []
            if name in self.refuses or (self.refuses_root and thing["spec"]["securityContext"]["runAsUser"] == 0):
                return 1, "", f'Error from server (Forbidden): pods "{name}" is forbidden: violates PodSecurity\n', []
            if not dry:
                self._start(name, thing)
        return 0, "", "", []

    def _start(self, name: str, manifest: dict[str, Any]) -> None:
        spec = manifest["spec"]
        containers = [*spec.get("initContainers", ()), *spec["containers"]]
        asks = any(
            "limits" in each.get("resources", {}) or "claims" in each.get("resources", {}) for each in containers
        )
        pod = self.pods[name] = Pod(manifest, list(self.gpus) if asks else [])
        way = "leftover" if name.startswith("leftover") else "kept-open" if name.startswith("kept-open") else name
        taken = {gpu for other in self.pods.values() if other is not pod for gpu in other.gpus}
        if name in self.unplaced or (asks and taken & set(self.gpus)):  # it waits for its node
            pod.gpus = []
            return
        if asks and way not in self.leaks and any(map(self._is_open, self.gpus)):
            pod.gpus, pod.why = [], {"reason": "UnexpectedAdmissionError", "message": "Allocate failed: in use"}
            return
        for container in containers:
            own = container.get("resources")
            role = "owner" if own else container["name"] if container["name"] == "second-container" else way
            self._run(pod, container, self.gpus if own or (role in self.leaks and role not in MAKE) else [], role)

    def _run(self, pod: Pod, container: dict[str, Any], nodes: list[str], role: str = "ephemeral-container") -> None:
        name, pod_name = container["name"], pod.manifest["metadata"]["name"]
        command = [sys.executable, self.probe, *(container.get("args") or container["command"][2:])]
        if role in self.odd:
            command = [sys.executable, "-c", self.odd[role]]
        variables = {each["name"]: each["value"] for each in container.get("env", ())}
        if container.get("image", "").startswith("variable"):
            variables["NVIDIA_VISIBLE_DEVICES"] = "all"
        with Path(self._log(pod_name, name)).open("wb") as log:
            pod.processes[name] = subprocess.Popen(
                self._isolated(f"{pod_name}-{name}", command, nodes, role), stdout=log, env=os.environ | variables
            )

    def _shown(self, name: str) -> dict[str, Any]:
        pod, kinds = self.pods[name], ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
        inits = {each["name"] for each in pod.manifest["spec"].get("initContainers", ())}
        shown: dict[str, Any] = {kind: [] for kind in kinds}
        for container, process in pod.processes.items():
            ended = process.poll() is not None
            state: dict[str, Any] = {"terminated": {"reason": "Completed"}} if ended else {"running": {}}
            if name in self.waiting:
                state = {"waiting": dict(zip(("reason", "message"), self.waiting[name], strict=True))}
            kind = kinds[2 if container == "ephemeral-container" else container in inits]
            image = f"registry.example/python@{digest(pod.manifest['spec']['containers'][0]['image'])}"
            shown[kind].append({"name": container, "state": state, "imageID": image})
        phase: dict[str, Any] = {"phase": "Running", "podIP": "127.0.0.1"} if pod.processes else {"phase": "Pending"}
        phase = {"phase": "Failed", **pod.why} if pod.why else phase
        if name in self.unplaced:
            about = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            phase["conditions"] = [{**about, "message": self.unplaced[name]}]
        return {**pod.manifest, "status": {**phase, **shown}}

    def _end(self, name: str, *, later: bool = False) -> None:
        if name == "owner" and not later:
            for process in self.left:
                process.kill()
                process.wait()
        if (pod := self.pods.pop(name, None)) is None:
            return
        if later:
            self.left += pod.processes.values()
        else:
            for process in pod.processes.values():
                process.kill()
                process.wait()
        for waiting, other in list(self.pods.items()):
            if not other.processes and not other.why:
                self._start(waiting, other.manifest)

    # -- containers

    def _attached(self, flags: list[str], argv: list[str], pid: int) -> tuple[int, str, str, list[str]]:
        [name] = [flag.split("=")[1] for flag in flags if flag.startswith(("--name=", "--job-name="))]
        role = name.split("-", 3)[3]
        if role in self.refuses:
            return 125, "", f"docker: Error response from daemon: {role} is not allowed\n", []
        gives = any(flag.startswith(("--gpus", "--device", "--gres=gpu")) for flag in flags)
        self.attached[name] = pid
        variables = [f"NVIDIA_VISIBLE_DEVICES={'all' if 'variable' in role or role == 'runtime-class' else ''}"]
        command = ["env", *variables, sys.executable, "-c", *argv]
        if role in self.odd:
            command = [sys.executable, "-c", self.odd[role]]
        nodes = self.gpus if gives or (role in self.leaks and role not in MAKE) else []
        return 0, "", "", self._isolated(name, command, nodes, role)

    def _isolated(self, name: str, command: list[str], nodes: list[str], role: str) -> list[str]:
        """The command in a /dev of its own, and in namespaces unless it is the way that leaks."""
        for folder, mode, user in ((f"dev-{name}", 0o666, 0), ("host/dev", 0o600, 12345)):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            shown = nodes if folder.startswith("dev-") else GPUS
            for node, number in [("null", (1, 3)), *((gpu, GPUS[gpu]) for gpu in shown)]:
                path = self.root / folder / node
                if not path.exists():
                    os.mknod(path, 0o20000 | mode, os.makedev(*number))
                    path.chmod(mode)
                    os.chown(path, user, user)
        under = [f"--under={self.root / 'host'}" if word == "--under=/host" else word for word in command]
        free = role in self.leaks or role == "owner" or "sharing" in role or "leav" in role
        flags = [] if free else ["--user", "--map-root-user"]
        if role == "handed-on" and not free:
            flags.append("--net")
        if "leav" in role and "leftover" not in self.leaks:
            flags += ["--pid", "--fork", "--kill-child"]  # what a job leaves behind ends with it
        return ["unshare", *flags, "--mount", "sh", "-c", INSIDE, "sh", str(self.root / f"dev-{name}"), *under]

    def _is_open(self, gpu: str) -> bool:
        """Whether a process of a pod has the node open: a plugin that looks refuses it then."""
        number, pods = os.makedev(*GPUS[gpu]), self.pods.values()
        processes = [*self.left, *(process for pod in pods for process in pod.processes.values())]
        for descriptor in (path for each in processes for path in Path(f"/proc/{each.pid}/fd").glob("*")):
            with suppress(OSError):
                if descriptor.stat().st_rdev == number:
                    return True
        return False

    def _killed(self, name: str) -> tuple[int, str, str, list[str]]:
        if (pid := self.attached.pop(name, None)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return 0, f"{name}\n", "", []

    def _log(self, pod: str, container: str) -> str:
        return str(self.root / f"log-{pod}-{container}")


def digest(image: str) -> str:
    """As a registry would say it."""
    return f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False
