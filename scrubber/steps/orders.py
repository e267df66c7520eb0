"""What a step is given (order, purpose, context) and what it reports (outcome, findings)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from scrubber.core.leftover import Span
from scrubber.core.model import Blame, Findings, Holder, Outcome
from scrubber.devices.base import Gpu, Progress


@dataclass(frozen=True, slots=True)
class Order:
    """What one step is to do, as plain values: steps do not know policies."""

    patterns: tuple[str, ...] = ("zero",)  # clear: the patterns to write, in order
    key: str = ""  # clear, scratch and selftest: hex, new for every path
    unused: bool = False  # evict: all processes of the node were just read, and none has the device
    terminate_leftovers: bool = False  # evict: leftovers may be ended
    terminate_foreign: bool = False  # evict: foreign processes may be ended
    tenancy: Span | None = None  # evict: a process that started in this span of uptime is a leftover
    grace: float = 2.0  # evict: seconds between TERM and KILL
    patience: float = 0.0  # evict: seconds to wait for processes that may not be ended
    seconds: float = 60.0  # selftest: how long it may test
    census: int = 1  # clear: at least one part in so many is searched for residue

    def key_for(self, purpose: str) -> bytes:
        """The key of the job for one purpose, so that no step accepts what another step wrote."""
        if not self.key:
            raise ValueError(f"cannot make a key for {purpose}: the order has none")
        return hashlib.blake2b(purpose.encode(), key=bytes.fromhex(self.key), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Report:
    """How a step ended. Every outcome but PASSED is a failure."""

    outcome: Outcome
    detail: str = ""
    blame: Blame = Blame.DEVICE
    findings: Findings | None = None


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step works with."""

    gpu: Gpu
    holders: Callable[[], tuple[Holder, ...] | None]  # None: the holders are unknown
    progress: Progress
    ours: Callable[[int], bool] = lambda _pid: False  # whether the service has started the process
