"""The operations of a worker child on one simulated GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path

from ground import private_files
from scrubber.core.measurements import Mismatch, Scratched, Tested, joined
from scrubber.core.model import Findings, Vitals
from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError, Progress
from scrubber.devices.simulated import chip, layout, memory
from scrubber.devices.simulated.layout import Counters, Faults, GpuFiles, Resetting, SimulatedSettings
from scrubber.devices.simulated.memory import Pattern

_TESTS = ("random", "arithmetic")


class SimulatedGpu:
    """One GPU made of files."""

    def __init__(self, directory: Path) -> None:
        self._place = GpuFiles(directory)

    def reset(self) -> str:
        """Reset the volatile state: counters, leaks, pending remaps, settings. The memory keeps its bytes."""
        faults = self._answer()
        if faults.reset is Resetting.REFUSED:
            raise DeviceError("cannot reset: the device is in use by another client")
        time.sleep(faults.reset_seconds)
        if faults.reset is Resetting.FAILS:
            raise DeviceError("cannot reset: the device did not come back")
        with private_files.locked(self._place.directory):
            counters = layout.read(self._place.counters, Counters)
            layout.write(self._place.counters, Counters(remap_failed=counters.remap_failed))
            layout.write(self._place.settings, SimulatedSettings())
        return "the simulated driver reset its volatile state"

    def prepare(self) -> None:
        """Do nothing: a simulated GPU needs no context."""

    def clear(
        self, key: bytes, patterns: Iterable[str], progress: Progress, _census: int = 1, *, confirm: bool = True
    ) -> Findings:
        """Count the old data, cut it off, write each pattern and read it back, but the last one only to confirm."""
        chosen = _patterns(patterns, key)
        faults = self._answer()
        with memory.opened(self._place, faults.stuck_bits, writes=not faults.skip_clears) as cells:
            # A stalled clear stops when it has taken away a half of the old data: the worst moment for a kill.
            stalling = _stalling(progress, self._place, cells.size // 2)
            step = _counted(stalling, cells.size * (1 + len(chosen) + confirm))
            residue, begins = cells.residue(step, cut=bool(chosen))
            if chosen:
                cells.fill(chosen[0], step)
            mismatch: Mismatch | None = None
            for pattern, *then in zip_longest(chosen if confirm else chosen[:-1], chosen[1:]):
                self._answer()
                layout.stall(self._place, lambda: step(0))
                mismatch = joined(mismatch, cells.compare(pattern, step, *then))
            if mismatch is not None and cells.holds(mismatch):
                raise NotNowError("another process wrote to the memory during the clear; the memory itself is good")
            covered = cells.size if chosen else 0
            return Findings(covered, cells.size, residue, mismatch, residue_at=begins)

    def verify(self, progress: Progress) -> Findings:
        """Read all memory: each byte must be zero. NotNowError if each byte is zero after one more clear."""
        found = self._read_back(progress)
        if found.mismatch is None:
            return found
        self.clear(b"", ("zero",), _silent)
        again = self._read_back(_silent)
        if again.mismatch is None:
            raise NotNowError("another process wrote to the memory after the clear; the memory itself is good")
        return again

    def _read_back(self, progress: Progress) -> Findings:
        faults = self._answer()
        with memory.opened(self._place, faults.stuck_bits) as cells:
            mismatch = cells.compare(memory.zero, _counted(progress, cells.size))
            return Findings(cells.size, cells.size, mismatch=mismatch)

    def scratch(self, key: bytes) -> Scratched:
        """Overwrite the on-chip memory of each unit, read it back, and leave zeros."""
        return chip.scrub(self._place, key, writes=not self._answer().skip_scratch)

    def selftest(self, key: bytes, seconds: float, progress: Progress) -> Tested:
        """Test random data and arithmetic, as far as the time allows. Writing zeros afterwards takes extra time."""
        ends = time.monotonic() + seconds
        faults = self._answer()
        ended = list[str]()
        mismatch: Mismatch | None = None
        units, deviating = 0, tuple[int, ...]()
        with memory.opened(self._place, faults.stuck_bits) as cells:
            step = _counted(progress, 4 * cells.size)
            if time.monotonic() < ends:
                mismatch = cells.write_and_compare(memory.keyed(key), step)
                ended.append("random")
            self._answer()
            if time.monotonic() < ends:
                units, deviating = chip.UNITS, tuple(sorted({*faults.bad_units}))
                ended.append("arithmetic")
            mismatch = joined(mismatch, cells.write_and_compare(memory.zero, step))
            skipped = tuple(name for name in _TESTS if name not in ended)
            return Tested(tuple(ended), skipped, cells.size, mismatch, units, deviating)

    def restore_settings(self) -> Findings:
        """Restore the baseline; returns the settings that had changed."""
        self._answer()
        with private_files.locked(self._place.directory):
            current = layout.read(self._place.settings, SimulatedSettings)
            baseline = layout.read(self._place.baseline, SimulatedSettings)
            if current != baseline:
                layout.write(self._place.settings, baseline)
        names = (field.name for field in fields(SimulatedSettings))
        pairs = ((name, getattr(current, name), getattr(baseline, name)) for name in names)
        return Findings(drift=tuple(f"{name}: {old} -> {new}" for name, old, new in pairs if old != new))

    def vitals(self) -> Vitals:
        """The health in the device's files now."""
        self._answer()
        return layout.vitals(self._place)

    def _answer(self) -> Faults:
        faults = layout.faults(self._place)
        if faults.lost:
            raise DeviceLostError("the device has fallen off the bus: reseat or replace it, then reboot the node")
        return faults


def _silent(_done: int, _total: int) -> None:
    """Progress that is not reported."""


def _patterns(names: Iterable[str], key: bytes) -> tuple[Pattern, ...]:
    return tuple(memory.by_name(name, key) for name in names)


def _stalling(progress: Progress, place: GpuFiles, where: int) -> Progress:
    there = False

    def stalled(done: int, total: int) -> None:
        nonlocal there
        progress(done, total)
        if done >= where and not there:
            there = True
            layout.stall(place, lambda: progress(done, total))

    return stalled


def _counted(progress: Progress, total: int) -> Callable[[int], None]:
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    return step
