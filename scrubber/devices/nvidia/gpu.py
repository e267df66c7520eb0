"""Touch: what a worker child does to one NVIDIA GPU or one slice of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scrubber.core.measurements import Scratched, Tested
from scrubber.core.model import Holder, Sign, Vitals
from scrubber.cuda import clearing, device, onchip, selftest
from scrubber.cuda.selftest import Clock
from scrubber.devices.base import (
    Cleared,
    DeviceError,
    DeviceLostError,
    NotNowError,
    Progress,
    Users,
    Verified,
)
from scrubber.devices.nvidia import holders
from scrubber.devices.nvidia.address import RECREATE, placed
from scrubber.devices.nvidia.health import vitals
from scrubber.devices.nvidia.health.signs import quick
from scrubber.devices.nvidia.holders import Usage
from scrubber.devices.nvidia.inventory import slices
from scrubber.devices.nvidia.memory import HeldMemory, OpenCard, in_our_words
from scrubber.devices.nvidia.nvml import Handle, Library, ResetRequiredError, Session
from scrubber.devices.nvidia.reset import locks, pending_restore, preconditions, reset
from scrubber.devices.nvidia.reset.pending_restore import PendingRestore, PendingRestores
from scrubber.devices.nvidia.reset.preconditions import ResetTarget
from scrubber.devices.nvidia.settings import restore as restoring
from scrubber.devices.nvidia.settings import settings
from scrubber.devices.nvidia.settings.settings import StoredSettings

CLOCK = Clock(time.monotonic, time.sleep)


def _beyond(idle: int) -> Callable[[Usage], int]:
    return lambda usage: holders.leaked(usage, idle)


def nobody_can_tell() -> tuple[Holder, ...] | None:
    """Who uses a device, while nobody looks: then it is not reset."""
    return None


class NvidiaGpu:
    """One device behind NVML, which is closed between any two deeds: an open library has device nodes open."""

    def __init__(
        self,
        place: str,
        reached: Users = nobody_can_tell,
        library: Library | None = None,
        daemon_runs: Callable[[str], bool] | None = None,
        open_card: OpenCard = device.opened,
    ) -> None:
        """Ask nothing yet.

        ``reached`` names whoever has open what a reset takes down: the whole GPU and all that are reset with it; for a
        slice that is made anew, that slice alone. Bystanders and the service are users as well. ``daemon_runs`` knows
        whether the node's own root runs a program of that name, in no container of a tenant's; None: nobody can tell.
        """
        self._place = placed(place)
        self._wanted = settings.named(self._place.wanted)
        self._reached = reached
        self._library = library or Library()
        self._daemon_runs = daemon_runs
        self._holding = HeldMemory(self._place, self._library, open_card)

    def reset(self) -> str:
        """The GPU's reset; or, where the policy says so, the slice is destroyed and made anew."""
        with self._closed_after():
            if self._place.parent is not None and self._place.slices == RECREATE:
                self._recreate(self._place.parent)
                return "the slice was made anew"
            return f"by {self._reset()}"

    def clear(self, key: bytes, patterns: Iterable[str], progress: Progress) -> Cleared:
        """The census, then each pattern over all of the memory, written and read back."""
        with self._closed_after():
            memory = self._holding.memory()
            with in_our_words():
                done = clearing.clear(memory, key, tuple(patterns), progress)
            # Memory that does not hold what is written is news whatever others did meanwhile.
            allocatable, uncovered = self._holding.account() if done.mismatch else self._holding.undisturbed()
        return Cleared(done.covered, allocatable, done.residue_bytes, done.mismatch, done.residue_at, uncovered)

    def verify(self, progress: Progress) -> Verified:
        """Read all of the memory, that which was cleared if it was: every byte must be zero."""
        with self._closed_after():
            memory = self._holding.memory()
            with in_our_words():
                done = clearing.verify(memory, progress)
            allocatable, _ = self._holding.account() if done.mismatch else self._holding.undisturbed()
        return Verified(done.covered, allocatable, done.mismatch)

    def scratch(self, key: bytes) -> Scratched:
        """Shared memory and registers of every multiprocessor."""
        with self._closed_after():
            card = self._holding.memory().card
            with in_our_words():
                return onchip.scratch(card, key)

    def selftest(self, key: bytes, seconds: float, progress: Progress) -> Tested:
        """Memory and arithmetic, and the counters of errors before and after."""
        with self._closed_after():
            memory = self._holding.memory()
            before = self._vitals()
            self._library.close()
            with in_our_words():
                done = selftest.run(memory, key, seconds, progress, CLOCK)
            if done.mismatch is None and not done.deviating:  # what it has found says more
                self._demand_sound(memory.card.units, done.units, before)
        return done

    def _demand_sound(self, units: int, computed: int, before: Vitals) -> None:
        """What a self-test does not find by itself."""
        if computed != units:
            raise DeviceError(f"cannot test {self._place.uuid}: {computed} of {units} multiprocessors came to compute")
        if fault := vitals.worsened(before, self._vitals()):
            raise DeviceError(f"cannot trust {self._place.uuid}: {fault} while it was tested")

    def restore_settings(self) -> tuple[str, ...]:
        """Bring them back, and say what had drifted. Those of a slice are its whole GPU's: told and left.

        Whoever scrubs one slice must not change what runs on another. They come back when the GPU is reset, which is
        done with nobody on it.
        """
        with self._closed_after():
            self._finish()
            if self._place.owed_only:
                return ()
            with self._library.session() as session:
                restore = restoring.restore if self._place.parent is None else restoring.shared
                return restore(session, self._place.gpu, self._first(session), self._wanted)

    def vitals(self) -> Vitals:
        """Health as the driver tells it now."""
        with self._closed_after():
            return self._vitals()

    def _vitals(self) -> Vitals:
        idle = self._place.idle_bytes
        leaked = holders.leaked if idle is None else _beyond(idle)
        with self._library.session() as session:
            return vitals.of(session, self._place.uuid, self._place.host.runs, leaked, self._signs)

    def _signs(self, session: Session, gpu: Handle) -> tuple[Sign, ...]:
        """A slice has no links."""
        links = frozenset(self._place.links) if self._place.parent is None else frozenset()
        return quick.at_once(session, gpu, links)

    @contextmanager
    def _closed_after(self) -> Iterator[None]:
        try:
            yield
        except DeviceError:
            with suppress(DeviceError):  # the first one tells more
                self._library.close()
            raise
        self._library.close()

    def _reset(self) -> str:
        with self._library.session() as session:
            first = self._first_if_told(session)  # a reset that is cut off leaves behind what it has set
        gpu, of_slice = self._place.gpu, self._place.parent is not None

        def after(session: Session) -> None:
            """Nobody is on any part of it. The settings of a GPU that is whole have a step of their own."""
            if of_slice:
                restoring.restore(session, gpu, self._first(session), self._wanted)

        def before(session: Session) -> None:
            restoring.before_reset(session, gpu, first, self._wanted)

        means = reset.reset(self._target(), before, after)
        if self._place.parent is not None:
            self._look_for_the_slice(self._place.parent)
        return means

    def _first_if_told(self, session: Session) -> StoredSettings:
        try:
            return self._first(session)
        except ResetRequiredError:  # it says nothing more before its reset
            return StoredSettings()

    def _finish(self) -> None:
        """Bring back what a reset that was cut off took away, of the GPU or of any of its slices."""
        notes = self._notes()
        left = notes.left() if notes else {}
        if notes is None or not left:
            return
        try:
            with self._no_reset(alone=True):
                self._bring_back(notes)
        except NotNowError:
            if {notes.file(), notes.file(self._place.uuid)} & left.keys():
                raise
            # Another slice is being made anew: whoever does that has it in hand.

    def _bring_back(self, notes: PendingRestores) -> None:
        left = notes.left()  # now that nobody else is at it
        try:
            with self._library.session() as session:
                pending_restore.finish(session, notes.gpu, left.values())
        except DeviceLostError:
            raise
        except DeviceError as error:
            remedy = f"set it right and remove {', '.join(map(str, left))}"
            raise DeviceError(f"cannot bring back what a reset took from {notes.gpu}: {error}; {remedy}") from error
        notes.drop(left)

    def _notes(self) -> PendingRestores | None:
        baseline = self._place.baseline
        return None if baseline is None else PendingRestores(Path(baseline).parent, self._place.gpu)

    def _lock(self, name: str) -> Path:
        place = self._place
        if place.resets is None:
            raise DeviceError(f"cannot reset {place.uuid}: its place does not say where its lock is")
        return locks.file_of(Path(place.resets), name)

    @contextmanager
    def _no_reset(self, *, alone: bool) -> Iterator[None]:
        """The GPU stays up, which is no reset in the eyes of others. ``alone``: nobody else makes slices meanwhile."""
        lock = self._lock(self._place.gpu)
        with locks.claimed(lock, shared=True), locks.claimed(locks.of_slices(lock), shared=not alone):
            yield

    def _first(self, session: Session) -> StoredSettings:
        """As the whole GPU was set when it was first seen."""
        path = self._place.baseline
        return StoredSettings() if path is None else settings.baseline(Path(path), session, self._place.gpu)

    def _target(self) -> ResetTarget:
        place = self._place
        return ResetTarget(
            place.gpu,
            place.pci_address,
            place.host,
            place.means,
            self._reached,
            self._library,
            tuple(map(self._lock, place.locks or (place.gpu,))),
            self._notes(),
            patience=preconditions.Patience.within(place.reset_seconds),
            daemon_runs=self._daemon_runs,
        )

    def _look_for_the_slice(self, parent: str) -> None:
        """One whose GPU told nothing before its reset is not laid out again by us."""
        with self._library.session() as session:
            if self._place.uuid in slices.uuids(slices.layout(session, parent)):
                return
        why = f"it did not come back with its GPU: lay the slices of {parent} out again"
        raise DeviceLostError(f"cannot reset {self._place.uuid}: {why}")

    def _recreate(self, parent: str) -> None:
        target = self._target()
        faults = (preconditions.rights(target), preconditions.in_the_way(self._reached()))
        if told := [fault for fault in faults if fault is not None]:
            raise NotNowError(f"cannot reset {self._place.uuid}: {'; '.join(told)}")
        self._finish()
        notes = self._notes()

        def written_down(one: slices.Instance) -> None:
            if notes is not None:
                notes.write(notes.file(self._place.uuid), PendingRestore(persistence=False, layout=(one,)))

        def nothing_is_owed() -> None:
            if notes is not None:
                notes.drop([notes.file(self._place.uuid)])

        with self._no_reset(alone=False), self._library.session() as session:
            try:
                slices.recreate(session, parent, self._place.uuid, written_down)
            except DeviceError:
                if self._is_there(session, parent):  # nothing was taken, or it was given back
                    nothing_is_owed()
                raise
            nothing_is_owed()

    def _is_there(self, session: Session, parent: str) -> bool:
        """Whether the slice is; what cannot be told is no."""
        with suppress(DeviceError):
            return self._place.uuid in slices.uuids(slices.layout(session, parent))
        return False
