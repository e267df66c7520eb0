"""The progress of scrubs on a terminal: a bar for each device, with its phase, amount and speed.

This module loads rich, which takes as long as everything else that a verb loads. So it is loaded by name, and only to
write to a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.text import Text

from autoclave.cli.output import human
from scrub_api import views

PHASES = ("not clean", "left alone", "running", "waiting", "clean")  # of a scrub, the first ones before the others


@contextmanager
def progress(devices: Mapping[str, views.DeviceStatus]) -> Iterator[Callable[[views.ScrubProgress], None]]:
    """Shows the progress of the devices as bars on stderr."""
    shown = Screenful(Console(stderr=True))
    show = Bars(shown, devices)
    with shown:
        yield show


class Screenful(bars.Progress):
    """As many bars as the terminal has room for: those of failed scrubs first, and the totals in a last line."""

    def __init__(self, terminal: Console) -> None:
        """``terminal`` shows the bars."""
        self._terminal = terminal
        super().__init__(
            bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TextColumn("{task.fields[amount]}"),
            Speed(), console=terminal,
        )  # fmt: skip

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bars and the totals."""
        if len(self.tasks) < self._terminal.height:
            yield self.make_tasks_table(self.tasks)
            return
        count = Counter(task.fields["phase"] for task in self.tasks)
        totals = ", ".join(f"{count[phase]} {phase}" for phase in PHASES if count[phase])
        line = Text(f"{len(self.tasks)} GPUs: {totals}; not all fit on this screen")
        room = self._terminal.height - len(line.wrap(self._terminal, self._terminal.width))
        most_telling = sorted(self.tasks, key=lambda task: PHASES.index(task.fields["phase"]))[:room]
        yield self.make_tasks_table(sorted(most_telling, key=lambda task: task.id))
        yield line


class Speed(bars.TransferSpeedColumn):
    """The speed of a step that moves bytes; nothing where rich shows a question mark."""

    def render(self, task: bars.Task) -> Text:
        """The speed, as rich writes it."""
        return Text() if task.finished_speed is None and task.speed is None else super().render(task)


class Bars:
    """A bar for each device. A new step restarts the bar, so that the speed is that of the step."""

    def __init__(self, progress: bars.Progress, devices: Mapping[str, views.DeviceStatus]) -> None:
        """``progress`` draws the bars."""
        self._progress = progress
        self._devices = devices
        self._steps: dict[str, str] = {}
        self._tasks = {
            device: progress.add_task(self._said(device, "waiting"), total=None, amount="", phase="waiting")
            for device in devices
        }

    def __call__(self, message: views.ScrubProgress) -> None:
        """Draw a message of the service."""
        task = self._tasks[message.device]
        if message.result is not None:
            end = 1 if message.result.clean else 0
            description = self._said(message.device, message.result.state)
            self._progress.update(
                task, description=description, completed=end, total=1, amount="", phase=_phase(message.result)
            )
        elif message.queue_place is not None:
            place = f"for a slot, {human.ordinal(message.queue_place)}"
            self._progress.update(task, description=self._said(message.device, "waiting"), amount=place)
        elif message.step:
            if self._steps.get(message.device) != message.step:
                self._steps[message.device] = message.step
                description = self._said(message.device, message.step)
                self._progress.reset(task, description=description, amount="", phase="running")
            done, total = message.done_bytes, message.total_bytes
            amount = f"{human.size(done)} of {human.size(total)}" if total else ""
            self._progress.update(task, completed=done, total=total or None, amount=amount)

    def _said(self, device: str, what: str) -> str:
        return escape(f"GPU {self._devices[device].name} {what:<11}")


def _phase(result: views.ScrubResult) -> str:
    if result.left_alone:
        return "left alone"
    return "clean" if result.clean else "running" if result.running else "not clean"
