"""Who may open a fenced device at any time: units of the host and pods of some namespaces, by their control groups."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from ground import log
from scrubber.node import group_places
from scrubber.node.cgroup_tree import GroupPlace, Tree
from scrubber.node.pods import PodNames

logger = log.get("fence")


class Exempt:
    """Finds these groups. What began since the last reading is found by the next one."""

    def __init__(self, tree: Tree, groups_of_pod: Callable[[str], frozenset[int]], pod_names: PodNames) -> None:
        self._tree = tree
        self._groups_of_pod = groups_of_pod
        self._pod_names = pod_names
        self._doubted = set[str]()  # units of whose groups the log has warned
        self._renamed = frozenset[str]()  # pods whose log directory was renamed, as the log has it
        self.names: dict[str, str] = {}  # NAMESPACE/NAME of each pod by its UID, at the last reading
        self._pods: dict[str, frozenset[int]] = {}  # the groups of those that have some
        self._answers: dict[tuple[tuple[str, ...], tuple[str, ...]], frozenset[int]] = {}  # since the last reading

    def read(self) -> None:
        """Read the units and pods of the node again."""
        self._answers.clear()
        self._tree.read()
        try:
            self.names = self._pod_names.read()
        except FileNotFoundError:  # no kubelet
            self.names = {}
        except OSError:  # such as too many open files: the last reading stays
            return
        self._pods = {pod: groups for pod, groups in self._pods.items() if pod in self.names}
        for pod in self._pod_names.renamed - self._renamed:
            logger.warning("the log directory of a pod has another name than the pod", pod=pod)
        self._renamed = self._pod_names.renamed

    def groups(self, units: tuple[str, ...], namespaces: tuple[str, ...]) -> frozenset[int]:
        """The groups of these units, and of all pods in these namespaces."""
        answer = self._answers.get((units, namespaces))
        if answer is None:
            self._answers[units, namespaces] = answer = self._find(units, namespaces)
        return answer

    def _find(self, units: tuple[str, ...], namespaces: Collection[str]) -> frozenset[int]:
        groups = [self._tree.units(units)]
        for unit, doubtful in self._tree.doubtful.items():
            # A group that systemd is about to use holds nobody yet.
            if unit not in self._doubted and any(group_places.is_populated(Path(group)) for group in doubtful):
                self._doubted.add(unit)
                logger.warning(
                    "a control group has the name of an exempt unit, and systemd did not start it", unit=unit
                )
        for pod, name in self.names.items():
            if name.partition("/")[0] in namespaces:
                if not self._pods.get(pod):
                    self._pods[pod] = self._groups_of_pod(pod)
                groups.append(self._pods[pod])
        return frozenset[int]().union(*groups)

    def place(self, group: int) -> GroupPlace | None:
        """What a group is; None if it is gone."""
        return self._tree.place(group)
