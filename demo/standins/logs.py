"""The log directories of pods, whose names contain the names of the pods.

Copies their names and lifetime from ``PK/kuberuntime/helpers.go`` (BuildPodLogsDirectory: made with the sandbox) and
``PK/kuberuntime/kuberuntime_gc.go`` (removed once the pod is deleted). They stay empty.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from demo.standins.pods import Pod


class Logs:
    """Without a directory, does nothing."""

    def __init__(self, directory: Path | None) -> None:
        """``directory`` is the parent of all log directories."""
        self._directory = directory

    def make(self, pod: Pod) -> None:
        """Make the directory of a pod, unless it exists."""
        if self._directory is not None:
            (self._directory / _name(pod)).mkdir(parents=True, exist_ok=True)

    def remove(self, pod: Pod) -> None:
        """Remove the directory of a deleted pod, if it exists."""
        if self._directory is not None:
            with suppress(FileNotFoundError):
                (self._directory / _name(pod)).rmdir()


def _name(pod: Pod) -> str:
    return f"{pod.namespace}_{pod.name}_{pod.uid}"
