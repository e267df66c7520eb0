"""The places whose commands stay attached to a container: docker, podman and Slurm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from access.hearing import ANSWERS_WITHIN, LEFT, LIVES, Ear, Secrets, answer_of
from access.interruption import Interruption
from access.manifest_files import PROBE
from access.probe_answers import Outcome
from access.ways import Place
from containers import places
from containers.commands import ContainerFailed, asked

MADE_WITHIN = 30.0  # seconds until a container says its first line, unless its image has to come first
_VARIABLE = ["--env=NVIDIA_VISIBLE_DEVICES=all", "--env=NVIDIA_DRIVER_CAPABILITIES=compute,utility"]


@dataclass
class Attached:
    """Containers whose commands stay: a command passes the words on, and ends with its container."""

    command: Callable[[str, str, list[str]], list[str]]  # of a role, with a name, for the arguments of the probe
    remove: Callable[[str], list[str]]
    interruption: Interruption
    nodes: str
    version: list[str]  # a command that says the version of the place
    one_network: bool = False
    inspect: Callable[[str], list[str]] | None = None  # of a role: a command that says the digest of its image
    own: Secrets = field(default_factory=Secrets)
    _running: dict[str, Ear] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)  # these have answered, or will not

    def begin(self) -> None:
        """Nothing: each container is made alone."""

    def start(self, role: str, numbers: str = "", ask: str = "") -> None:
        """Start a container."""
        self.interruption.check()
        name = f"autoclave-access-{self.own.nonce}-{role}"
        probe = arguments(role, self.own, self.nodes, numbers, ask)
        self._running[role] = Ear(self.command(role, name, probe), self.remove(name))

    def answer(self, role: str, within: float) -> Outcome:
        """What its probe says."""
        outcome = answer_of(self._running[role], self.own.nonce, within, self.interruption)
        self._asked.add(role)
        return outcome

    def runs(self, role: str) -> bool:
        """Whether its command runs."""
        return self._running[role].status is None

    def address(self, role: str) -> str:
        """The socket of an owner, where all share the network of the node."""
        return f"unix:{self.own.nonce}-{role}" if self.one_network else ""

    def image(self, role: str) -> str:
        """Words with the digest of its image, or without one."""
        return asked(self.inspect(role)).stdout.strip() if self.inspect is not None else ""

    def leave_behind(self, successor: str) -> tuple[None, Outcome]:
        """End the owner, start one that ends at once and leaves a process behind for a time, and then the next one."""
        self.end("owner")
        self.start("leaving-owner")
        outcome = self.answer("leaving-owner", ANSWERS_WITHIN)
        self._running["leaving-owner"].wait()
        self.start(successor, ask=self.address("leaving-owner"))
        return None, outcome

    def end(self, role: str) -> None:
        """Remove it, but not while it is being made: podman, killed at that moment, leaves a process behind."""
        if role in self._running:
            if role not in self._asked:
                with suppress(ContainerFailed):
                    self._running[role].hear(MADE_WITHIN)
            self._running[role].clear_away()
            del self._running[role]

    def close(self) -> None:
        """Remove all, also after one could not be removed."""
        failed = []
        for role in list(self._running):
            try:
                self.end(role)
            except ContainerFailed as error:
                failed.append(error.why)
        if failed:
            raise ContainerFailed("; ".join(failed))

    def facts(self) -> dict[str, str]:
        """The version of the place."""
        return {"version": " ".join(asked(self.version).stdout.split())[:200]}


def arguments(role: str, own: Secrets, nodes: str, numbers: str, ask: str) -> list[str]:
    """The arguments of the probe in a container that is not described by a manifest."""
    usual = [f"--nonce={own.nonce}", f"--secret={own.secret}", f"--nodes={nodes}"]
    holds = f"--stay={LIVES}"
    ways = {
        "owner": ["own", *usual, holds, f"--share={own.nonce}-owner"],
        "sharing-owner": ["own", *usual, holds, f"--share={own.nonce}"],
        "leaving-owner": ["own", *usual, f"--stay={LEFT}", f"--share={own.nonce}-leaving-owner", "--leave"],
        "handed-on": ["try", *usual, holds, f"--receive={own.nonce}"],
        "host-dev": ["try", *usual, "--under=/host"],
        "own-node": ["try", *usual, "--make"],
        "privileged-own-node": ["try", *usual, "--make"],
        "host-pid": ["try", *usual, "--processes"],
    }
    deed = ["own", *usual] if role.startswith(("leftover", "kept-open")) else ["try", *usual]
    more = [f"--numbers={numbers}"] if numbers else []
    return [*ways.get(role, deed), *more, *([f"--ask={ask}"] if ask else [])]


def docker(place: Place, image: str, variable_image: str, gpu: str, nodes: str, interruption: Interruption) -> Attached:
    """Containers of docker or podman. ``gpu``: an index or a UUID, or the path of a device node."""
    program = place.value
    device = f"--device={gpu}" if gpu.startswith("/") else f"--device=nvidia.com/gpu={gpu}"
    if program == "docker" and not gpu.startswith("/"):
        device = f"--gpus=device={gpu}"
    given = [device, "--env=NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    flags: Mapping[str, list[str]] = {
        "owner": given,
        "sharing-owner": [*given, "--network=host"],
        "handed-on": ["--network=host"],
        "variable": _VARIABLE,
        "runtime-class": ["--runtime=nvidia", *_VARIABLE],
        "host-dev": ["--volume=/dev:/host/dev:ro"],
        "own-node": ["--cap-add=MKNOD"],
        "privileged": ["--privileged"],
        "privileged-own-node": ["--privileged"],
        "host-pid": ["--pid=host", "--cap-add=SYS_PTRACE"],
    }

    def image_of(role: str) -> str:
        return variable_image if role == "image-variable" else image

    def inspect(role: str) -> list[str]:
        return [program, "image", "inspect", "--format={{.Id}}", image_of(role)]

    def command(role: str, name: str, probe: list[str]) -> list[str]:
        source = ["--entrypoint=python3", image_of(role), "-c", PROBE.read_text()]
        usual = ["--rm", f"--name={name}", "--label=autoclave-access", "--user=0", "--stop-timeout=0"]
        return [program, "run", *usual, *flags.get(role, []), *source, *probe]

    remove = partial(places.removed_by_docker, program=program)
    return Attached(command, remove, interruption, nodes, [program, "--version"], inspect=inspect)


def slurm(node: str, count: int, nodes: str, interruption: Interruption) -> Attached:
    """Jobs, by srun. The probe is given to the Python that runs this program, at the same path on the node."""

    def command(role: str, name: str, probe: list[str]) -> list[str]:
        holds = "owner" in role or role.startswith(("leftover", "kept-open"))
        given = [f"--gres=gpu:{count}"] if holds else ["--gres=none"]
        variable = ["--export=ALL,NVIDIA_VISIBLE_DEVICES=all,CUDA_VISIBLE_DEVICES=all"] if role == "variable" else []
        flags = ["--quiet", "--ntasks=1", f"--job-name={name}", f"--nodelist={node}", f"--time={LIVES // 60 + 1}"]
        return ["srun", *flags, *given, *variable, sys.executable, "-c", PROBE.read_text(), *probe]

    def remove(name: str) -> list[str]:
        return ["scancel", f"--name={name}"]

    return Attached(command, remove, interruption, nodes, ["srun", "--version"], one_network=True)
