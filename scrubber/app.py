"""Builds the service from its configuration. Builds everything, starts nothing."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import scrubber
from scrubber import log
from scrubber.config import Backend as Chosen
from scrubber.config import ScrubberConfig
from scrubber.core import states
from scrubber.devices.base import Address, Backend
from scrubber.devices.simulated import creation, layout
from scrubber.devices.simulated.backend import Simulated
from scrubber.errors import FatalError
from scrubber.hooks import Tools
from scrubber.jobs import Jobs
from scrubber.ledger import opening, places, store
from scrubber.ledger.ledger import Ledger, replay
from scrubber.monitor import Monitor
from scrubber.node import clock, identity
from scrubber.node.processes import Processes
from scrubber.report import Identity, Reporter
from scrubber.rulebook import Rulebook
from scrubber.service import Service
from scrubber.sight import Sight
from scrubber.steps.worker import Worker

logger = log.get("app")

WATCH_EVERY = 0.25  # seconds between looks for intruders while a step runs


@dataclass(frozen=True, slots=True)
class App:
    """The parts that the daemon starts and stops."""

    config: ScrubberConfig
    ledger: Ledger
    service: Service
    reporter: Reporter
    monitor: Monitor
    rulebook: Rulebook


def build_backend(config: ScrubberConfig) -> Backend:
    """The hardware that was asked for; what is not there is said at once."""
    if config.backend is not Chosen.SIMULATED:
        asked = config.backend.value
        raise FatalError(f"cannot use backend {asked}: this version knows simulated GPUs only; use --backend simulated")
    creation.create(config.simulated_dir, config.simulated_gpus, config.simulated_memory, identity.boot_id())
    if layout.service_lock(config.simulated_dir) is None:  # held until this process ends
        raise FatalError(f"cannot start: another autoclave scrubber has the GPUs of {config.simulated_dir}")
    return Simulated(config.simulated_dir)


def open_ledger(config: ScrubberConfig) -> Ledger:
    """The ledger, replayed; a damaged one is set aside, loudly, and every device is unknown."""
    believed: list[store.Loaded] = []

    def believe(loaded: store.Loaded) -> None:
        """A history that cannot have happened is as good as a broken chain."""
        try:
            replay(loaded.snapshot, loaded.entries)
        except states.IllegalEventError as error:
            raise store.CorruptLedgerError(f"cannot replay the ledger: {error}") from error
        believed.append(loaded)

    opened, aside = opening.open_or_set_aside(config.ledger, clock.now(), believe)
    if aside is not None:
        logger.error("ledger set aside: every device is unknown now", why=aside.why, kept_as=str(aside.path))
    return Ledger(opened, clock.now, loaded=believed[-1])


def build(config: ScrubberConfig, backend: Backend, rulebook: Rulebook, ledger: Ledger) -> App:
    """Everything, ready to be started."""
    # A simulated GPU is a file of this user's; for real ones every process of the node must be seen.
    full_sight = not isinstance(backend, Simulated)
    processes = Processes(Path("/proc"), backend.container_of, full_sight=full_sight)
    sight = Sight(backend, processes, identity.boot_id(), config.kubelet_dir, clock.now().uptime)

    async def hire(address: Address, files: Sequence[str]) -> Worker:
        return await Worker.spawn(address, files, full_sight=full_sight)

    jobs = Jobs(ledger, sight, hire, clock.now, secrets.token_hex, WATCH_EVERY)
    service = Service(ledger, sight, jobs, rulebook, Tools(clock.now, secrets.token_hex, random.SystemRandom().random))
    simulated_dir = "" if full_sight else str(config.simulated_dir)
    about = Identity(
        scrubber.__version__,
        backend.name,
        simulated_dir,
        str(config.state_dir),
        clock.now().wall,
        places.Places(config.ledger).aside(),
    )
    reporter = Reporter(service, about)
    return App(config, ledger, service, reporter, Monitor(service, sight), rulebook)
