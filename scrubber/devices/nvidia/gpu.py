"""The steps of a worker on one NVIDIA GPU or slice: CUDA memory, reset, settings, vitals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ground.documents import strict_json
from scrubber.core.measured import Cleared, Restored, Scratched, Tested, Verified
from scrubber.core.model import Vitals
from scrubber.cuda import clearing, cuda_card, selftest
from scrubber.cuda.selftest import Clock
from scrubber.devices.base import Counts, DeviceError, DeviceLostError, Progress, Users
from scrubber.devices.nvidia import holders, locks, pending_restore, preconditions, reset, settings, slices
from scrubber.devices.nvidia.address import WorkerTarget
from scrubber.devices.nvidia.health import vitals
from scrubber.devices.nvidia.held_memory import CLOCK, HeldMemory, OpenCard, cuda_errors_translated, once_freed
from scrubber.devices.nvidia.nvml import Library, Session, unless_silent
from scrubber.devices.nvidia.preconditions import ResetTarget
from scrubber.devices.nvidia.restore import Restorer
from scrubber.devices.nvidia.settings import StoredSettings


class NvidiaGpu:
    """One device. NVML is closed after each step, because an open library keeps device nodes open."""

    def __init__(
        self,
        place: str,
        reset_holders: Users,
        library: Library | None = None,
        daemon_runs: Callable[[str], bool] | None = None,
        open_card: OpenCard = cuda_card.opened,
        memory: Counts | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        """Open nothing yet.

        ``reset_holders`` returns the holders of all that the reset takes down: the GPU and its reset domain. It
        includes bystanders and the service. ``daemon_runs`` says whether root runs a program of that name on the node,
        outside of pods; None if this cannot be found out. ``memory`` are the counts before the worker began; None: read
        them.
        """
        self._place = strict_json.decode(WorkerTarget, place)
        self._reset_holders = reset_holders
        self._library = library or Library()
        self._daemon_runs = daemon_runs
        self._clock = clock
        self._holding = HeldMemory(self._place, self._library, open_card, memory, clock)
        self._read_ahead: Vitals | None = None

    def reset(self) -> str:
        """Reset the GPU, of a slice the whole GPU, and create its slices again."""
        with self._closed_after():
            self._reset()
            return f"by {reset.PROGRAM}"

    def prepare(self) -> None:
        """Start CUDA and make the context, which takes longer than the passes over the memory."""
        with self._closed_after():
            self._holding.prepare()

    def clear(self, key: bytes, patterns: Iterable[str], progress: Progress, census: int = 1) -> Cleared:
        """Look for residue, then write each pattern over all of the memory and read back each but the last."""
        with self._closed_after():
            memory = self._holding.memory()
            with cuda_errors_translated():
                done = clearing.clear(memory, key, tuple(patterns), progress, census)
            # A mismatch is reported even if another process used memory meanwhile.
            allocatable, uncovered = self._holding.account() if done.mismatch else self._holding.undisturbed()
        restored = self._holding.restored
        return replace(done, allocatable_bytes=allocatable, uncovered=uncovered, drift=restored)

    def verify(self, progress: Progress) -> Verified:
        """Read all of the memory that this worker has cleared: every byte must be as it was last written."""
        with self._closed_after():
            memory = self._holding.memory()
            with cuda_errors_translated():
                done = clearing.verify(memory, progress)
            allocatable, _ = self._holding.account() if done.mismatch else self._holding.undisturbed()
        return replace(done, allocatable_bytes=allocatable)

    def scratch(self, key: bytes) -> Scratched:
        """Overwrite the shared memory and registers of every multiprocessor."""
        with self._closed_after():
            card = self._holding.memory().card
            with cuda_errors_translated():
                done = clearing.scratch(card, key)
        return replace(done, units_left=clearing.not_overwritten(card.capability, virtual=self._place.virtual))

    def selftest(self, key: bytes, seconds: float, progress: Progress) -> Tested:
        """Test memory and arithmetic, and compare the error and repair counters before and after."""
        with self._closed_after():
            memory = self._holding.memory()
            before = self._signs_of_wear()
            self._library.close()
            with cuda_errors_translated():
                done = selftest.run(memory, key, seconds, progress, self._clock)
            if done.mismatch is None and not done.deviating:  # a mismatch or deviation is the better finding
                done = self._demand_sound(done, memory.card.units, before)
        return done

    def _demand_sound(self, done: Tested, units: int, before: tuple[Vitals, vitals.Repairs]) -> Tested:
        """Raise DeviceError for faults that the self-test itself does not see. Returns it with what was repaired."""
        if done.units != units:
            ran = f"only {done.units} of {units} multiprocessors computed"
            raise DeviceError(f"cannot test {self._place.uuid}: {ran}")
        (was, had), (now, has) = before, self._signs_of_wear()
        if fault := vitals.worsened(was, now):
            raise DeviceError(f"cannot trust {self._place.uuid}: {fault} during its test")
        return replace(done, repaired=has.since(had))

    def _signs_of_wear(self) -> tuple[Vitals, vitals.Repairs]:
        with self._library.session() as session:
            return self._vitals_in(session), vitals.repairs(session, self._place.uuid)

    def restore_settings(self) -> Restored:
        """Restore the settings, and return those that had drifted. For a slice, only report them.

        A slice shares the settings with the whole GPU, and other slices may be in use. They are restored when the GPU
        is reset, because a reset needs a GPU without holders.
        """
        with self._closed_after():
            notes, lock = self._place.notes, self._place.lock
            if notes.read():  # an interrupted reset took something
                # No reset and no other worker may create slices meanwhile.
                with (
                    locks.claimed(lock, shared=True),
                    locks.claimed(locks.of_slices(lock)),
                    self._library.session() as session,
                ):
                    pending_restore.apply_all(session, notes)
            if self._place.restore_only:
                return Restored()
            with self._library.session() as session:
                restorer = self._restorer(session, self._first(session))
                restored = restorer.restore() if self._place.parent is None else Restored(restorer.shared())
                with suppress(DeviceError):  # then the step health reads them, and reports the error
                    self._read_ahead = self._vitals_in(session)
                return restored

    def vitals(self) -> Vitals:
        """Health as the driver reports it now; after the settings step, as it did when the settings were restored.

        To open NVML once more takes longer than to read. The service reads the health itself at the end. Memory is
        leaked only if the driver does not free it in time.
        """
        ahead, self._read_ahead = self._read_ahead, None
        if ahead is not None and not ahead.leaked_bytes:
            return ahead
        with self._closed_after():
            return once_freed(self._vitals, lambda seen: not seen.leaked_bytes, self._clock)

    def _vitals(self) -> Vitals:
        with self._library.session() as session:
            return self._vitals_in(session)

    def _vitals_in(self, session: Session) -> Vitals:
        # A slice has no links.
        links = frozenset(self._place.links) if self._place.parent is None else frozenset()
        health, usage = vitals.read(
            session, self._place.uuid, self._place.host.runs, lambda gpu: vitals.at_once(session, gpu, links)
        )
        return health if usage is None else replace(health, leaked_bytes=holders.leaked(usage, self._place.idle_bytes))

    @contextmanager
    def _closed_after(self) -> Iterator[None]:
        try:
            yield
        except DeviceError:
            with suppress(DeviceError):  # the first error is the better one
                self._library.close()
            raise
        self._library.close()

    def _reset(self) -> None:
        with self._library.session() as session:
            # Before a cancelled reset can change settings.
            first = unless_silent(lambda: self._first(session), StoredSettings())

        def after(session: Session) -> None:
            """The GPU has no holder now. A whole GPU has a settings step of its own."""
            if self._place.parent is not None:
                self._restorer(session, self._first(session)).restore()

        def before(session: Session) -> None:
            self._restorer(session, first).before_reset()

        target = ResetTarget(
            self._place,
            self._reset_holders,
            self._library,
            preconditions.is_root(),
            preconditions.Patience.within(self._place.reset_seconds),
            self._daemon_runs,
        )
        reset.reset(target, before, after)
        if (parent := self._place.parent) is None:
            return
        # A GPU that did not answer before its reset has no known layout, so its slice may be gone.
        with self._library.session() as session:
            if self._place.uuid in slices.uuids(slices.layout(session, parent)):
                return
        why = f"it did not come back with its GPU: create the slices of {parent} again"
        raise DeviceLostError(f"cannot reset {self._place.uuid}: {why}")

    def _first(self, session: Session) -> StoredSettings:
        """The settings that the whole GPU was first seen with."""
        return settings.first_seen(Path(self._place.first_seen), session, self._place.gpu)

    def _restorer(self, session: Session, first: StoredSettings) -> Restorer:
        return Restorer(session, self._place.gpu, first, self._place.left)
