"""Touch: what a worker child does to one NVIDIA GPU or one slice of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scrubber.core.model import Holder, Vitals
from scrubber.devices.base import Cleared, DeviceError, DeviceLostError, NotNowError, Progress, Users, Verified
from scrubber.devices.nvidia import conditions, locks, reset, restoring, settings, slices, unfinished, users, vitals
from scrubber.devices.nvidia.conditions import Target
from scrubber.devices.nvidia.library import Library, ResetRequiredError, Session
from scrubber.devices.nvidia.place import RECREATE, placed
from scrubber.devices.nvidia.settings import Settings
from scrubber.devices.nvidia.unfinished import Notes, Owed
from scrubber.devices.nvidia.users import Usage


def _beyond(idle: int) -> Callable[[Usage], int]:
    return lambda usage: users.leaked(usage, idle)


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

    def reset(self) -> None:
        """The GPU's reset; or, where the policy says so, the slice is destroyed and made anew."""
        with self._closed_after():
            if self._place.parent is not None and self._place.slices == RECREATE:
                self._recreate(self._place.parent)
            else:
                self._reset()

    def clear(self, key: bytes, patterns: Iterable[str], progress: Progress) -> Cleared:  # noqa: ARG002 - the port's
        """Not in this version."""
        raise DeviceError("cannot clear: this version has no CUDA worker yet")

    def verify(self, progress: Progress) -> Verified:  # noqa: ARG002 - the port's
        """Not in this version."""
        raise DeviceError("cannot verify: this version has no CUDA worker yet")

    def restore_settings(self) -> tuple[str, ...]:
        """Bring them back, and say what had drifted. Those of a slice are its whole GPU's: told and left.

        Whoever scrubs one slice must not change what runs on another. They come back when the GPU is reset, which is
        done with nobody on it.
        """
        with self._closed_after():
            self._finish()
            with self._library.session() as session:
                restore = restoring.restore if self._place.parent is None else restoring.shared
                return restore(session, self._place.gpu, self._first(session), self._wanted)

    def vitals(self) -> Vitals:
        """Health as the driver tells it now."""
        idle = self._place.idle_bytes
        with self._closed_after(), self._library.session() as session:
            return vitals.of(
                session,
                self._place.uuid,
                self._place.host.runs,
                users.leaked if idle is None else _beyond(idle),
            )

    @contextmanager
    def _closed_after(self) -> Iterator[None]:
        try:
            yield
        except DeviceError:
            with suppress(DeviceError):  # the first one tells more
                self._library.close()
            raise
        self._library.close()

    def _reset(self) -> None:
        with self._library.session() as session:
            first = self._first_if_told(session)  # a reset that is cut off leaves behind what it has set
        gpu, of_slice = self._place.gpu, self._place.parent is not None

        def after(session: Session) -> None:
            """Nobody is on any part of it. The settings of a GPU that is whole have a step of their own."""
            if of_slice:
                restoring.restore(session, gpu, self._first(session), self._wanted)

        reset.reset(self._target(), lambda session: restoring.before_reset(session, gpu, first, self._wanted), after)
        if self._place.parent is not None:
            self._look_for_the_slice(self._place.parent)

    def _first_if_told(self, session: Session) -> Settings:
        try:
            return self._first(session)
        except ResetRequiredError:  # it says nothing more before its reset
            return Settings()

    def _finish(self) -> None:
        """Bring back what a reset that was cut off took away, of the GPU or of any of its slices."""
        notes = self._notes()
        left = notes.left() if notes else {}
        if notes is None or not left:
            return
        try:
            with locks.claimed(self._lock()):
                self._bring_back(notes)
        except NotNowError:
            if {notes.file(), notes.file(self._place.uuid)} & left.keys():
                raise
            # Another slice is being made anew: whoever does that has it in hand.

    def _bring_back(self, notes: Notes) -> None:
        left = notes.left()  # now that nobody else is at it
        try:
            with self._library.session() as session:
                unfinished.bring_back(session, notes.gpu, unfinished.together(left.values()))
        except DeviceLostError:
            raise
        except DeviceError as error:
            remedy = f"set it right and remove {', '.join(map(str, left))}"
            raise DeviceError(f"cannot bring back what a reset took from {notes.gpu}: {error}; {remedy}") from error
        notes.drop(left)

    def _notes(self) -> Notes | None:
        baseline = self._place.baseline
        return None if baseline is None else Notes(Path(baseline).parent, self._place.gpu)

    def _lock(self) -> Path:
        place = self._place
        if place.resets is None:
            raise DeviceError(f"cannot reset {place.uuid}: its place does not say where its lock is")
        return locks.file_of(Path(place.resets), place.domain or place.gpu)

    def _first(self, session: Session) -> Settings:
        """As the whole GPU was set when it was first seen."""
        path = self._place.baseline
        return Settings() if path is None else settings.baseline(Path(path), session, self._place.gpu)

    def _target(self) -> Target:
        place = self._place
        return Target(
            place.gpu,
            place.pci_address,
            place.host,
            place.means,
            self._reached,
            self._library,
            self._lock(),
            self._notes(),
            patience=conditions.Patience.within(place.reset_seconds),
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
        faults = (conditions.rights(target), conditions.in_the_way(self._reached()))
        if told := [fault for fault in faults if fault is not None]:
            raise NotNowError(f"cannot reset {self._place.uuid}: {'; '.join(told)}")
        self._finish()
        notes = self._notes()

        def written_down(one: slices.Instance) -> None:
            if notes is not None:
                notes.write(notes.file(self._place.uuid), Owed(persistence=False, layout=(one,)))

        with locks.claimed(target.lock, shared=True), self._library.session() as session:
            slices.recreate(session, parent, self._place.uuid, written_down)
            if notes is not None:
                notes.drop([notes.file(self._place.uuid)])
