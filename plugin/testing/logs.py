"""The directories for the logs of pods, by which a node can tell what a pod is called.

Copies their names and their time from ``PK/kuberuntime/helpers.go`` (BuildPodLogsDirectory: made with the sandbox) and
``PK/kuberuntime/kuberuntime_gc.go`` (removed once the pod is deleted). Nothing is written into them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from plugin.testing.pods import Pod


class Logs:
    """Without a place there are none."""

    def __init__(self, directory: Path | None) -> None:
        """Nothing is made yet."""
        self._directory = directory

    def make(self, pod: Pod) -> None:
        """Its sandbox is about to be made; it may be there already."""
        if self._directory is not None:
            (self._directory / _name(pod)).mkdir(parents=True, exist_ok=True)

    def remove(self, pod: Pod) -> None:
        """It is deleted; it may never have come so far that it had one."""
        if self._directory is not None:
            with suppress(FileNotFoundError):
                (self._directory / _name(pod)).rmdir()


def _name(pod: Pod) -> str:
    return f"{pod.namespace}_{pod.name}_{pod.uid}"
