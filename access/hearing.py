"""Hears the probe in a container, whatever command passes its words on."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from access.interruption import Interruption
from access.probe_answers import Answer, NoAnswer, Unanswered, parse
from containers.commands import ContainerFailed
from containers.container import Container

LIVES = 900  # seconds: then Kubernetes ends a pod, and the program in any container ends by itself
LEFT = 60  # seconds: so long a process is left behind by a job, where nobody can end it from outside
_PORTS = range(20000, 30000)
ANSWERS_WITHIN = 120.0  # seconds, of a container that runs


@dataclass(frozen=True, slots=True)
class Secrets:
    """What tells the containers of this run from others, and what is looked for."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(4))
    secret: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def namespace(self) -> str:
        """The namespace of this run alone."""
        return f"autoclave-access-{self.nonce}"

    @property
    def port(self) -> int:
        """The port on which the owner is asked, in the network of its pod."""
        return _PORTS[int(self.nonce, 16) % len(_PORTS)]


class Ear(Container):
    """A container that is heard until a signal comes."""

    says_after = 0.2  # seconds until a signal is heard while a container says nothing


def answer_of(container: Container, nonce: str, within: float, interruption: Interruption) -> Answer | Unanswered:
    """The answer of the probe behind a command."""

    def silent() -> str:
        interruption.check()
        return ""

    try:
        return parse(container.hear(within, silent), nonce)
    except (ContainerFailed, NoAnswer) as error:
        return Unanswered(error.why if isinstance(error, ContainerFailed) else str(error))
