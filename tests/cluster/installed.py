"""Autoclave as a user installs it: the image in the runtime, and the objects of the chart in the API server."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lightkube.core.resource_registry import resource_registry
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.types import PatchType

from deploy import generate
from tests.cluster.autoclave import ROOT_OF_FENCE, RUN_DIR, Operator
from tests.cluster.cluster import Cluster
from tests.deploy import manifests

STATE_DIR = Path("/var/lib/autoclave")
SIMULATED = STATE_DIR / "simulated"
GPUS = 2  # of the overlays
PODS = Path("/var/log/pods")
# For a fence, simulated GPUs have loop devices. Their service makes the nodes, and the control group of the fence.
FOR_FENCE = {
    "scrubber": {
        "privileged": True,
        "extraArgs": ["--cgroup-root=/fence"],
        "extraVolumes": [{"name": "fence", "hostPath": {"path": str(ROOT_OF_FENCE), "type": "Directory"}}],
        "extraVolumeMounts": [{"name": "fence", "mountPath": "/fence"}],
    }
}
SPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": generate.NAMESPACE, "labels": generate.PRIVILEGED},
}


def objects(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the chart makes of values, without the pod of ``helm test``.

    And without ephemeral storage: the kubelet of this node has a root file system in memory, and offers none.
    """
    documents = [doc for doc in manifests.loaded(dict(values)) if "annotations" not in doc["metadata"]]
    for doc in documents:
        if doc["kind"] == "DaemonSet":
            without_storage(doc["spec"]["template"]["spec"])
    return documents


def without_storage(pod: Mapping[str, Any]) -> None:
    """Let the containers of a pod ask for no ephemeral storage."""
    for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
        for resources in container.get("resources", {}).values():
            resources.pop("ephemeral-storage", None)


async def apply(cluster: Cluster, documents: Iterable[Mapping[str, Any]], *, dry_run: bool = False) -> None:
    """Give objects to the API server, as ``kubectl apply --server-side`` does: it refuses unknown fields."""
    for doc in documents:
        about = doc["metadata"]
        resource: Any = resource_registry.load(doc["apiVersion"], doc["kind"])
        await cluster.client.patch(
            resource,
            about["name"],
            dict(doc),
            namespace=about.get("namespace"),
            patch_type=PatchType.APPLY,
            field_manager="tests",
            force=True,
            dry_run=dry_run,
        )


class Installed(Operator):
    """Both DaemonSets, with the rights that the chart gives them."""

    def __init__(self, logs: Path, values: Mapping[str, Any], fence: str | None = None) -> None:
        """Nothing is installed. ``values``: of the chart. ``fence``: the mode of the fence."""
        super().__init__(RUN_DIR / "doors", fence)
        self._logs = logs
        self.objects = objects(self._fenced(values))
        logs.mkdir()

    async def change(self, values: Mapping[str, Any]) -> None:
        """As ``helm upgrade --install`` with other values."""
        self.objects = objects(self._fenced(values))
        await self.up()

    def _fenced(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """With a fence: its policy, and what GPUs that are simulated take for it."""
        if self._fence is None:
            return dict(values)
        return {**values, **FOR_FENCE, "policy": {**values.get("policy", {}), "inline": self._policy()}}

    async def up(self) -> None:
        """Return when both DaemonSets are ready on each node."""
        async with self._cluster() as cluster:
            await apply(cluster, [SPACE, *self.objects])
            for doc in self.objects:
                if doc["kind"] == "DaemonSet":
                    await cluster.until(DaemonSet, doc["metadata"]["name"], _rolled_out, generate.NAMESPACE)

    async def down(self) -> None:
        """Return when nothing of it is left."""
        await self.uninstall()
        for directory in (STATE_DIR, RUN_DIR):  # as the page of the installation says
            shutil.rmtree(directory)

    async def uninstall(self) -> None:
        """As ``helm uninstall``. Return when nothing of it is left in the API server."""
        async with self._cluster() as cluster:
            for doc in self.objects:
                resource: Any = resource_registry.load(doc["apiVersion"], doc["kind"])
                await cluster.client.delete(
                    resource, doc["metadata"]["name"], namespace=doc["metadata"].get("namespace")
                )
            await cluster.client.delete(Namespace, generate.NAMESPACE)
            await cluster.until(Namespace, generate.NAMESPACE, lambda space: space is None)

    def keep_logs(self) -> None:
        """Copy what the pods wrote."""
        for folder in PODS.glob(f"{generate.NAMESPACE}_*"):
            shutil.copytree(folder, self._logs / folder.name)

    async def update(self, name: str) -> None:
        """Replace the pod of a DaemonSet, as ``kubectl rollout restart`` does. Return when only the new pod is left."""
        async with self._cluster() as cluster:
            before = await self.pods(name)
            annotations = {"kubectl.kubernetes.io/restartedAt": ",".join(before)}
            patch: Any = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
            await cluster.client.patch(DaemonSet, name, patch, namespace=generate.NAMESPACE)
            await cluster.until(DaemonSet, name, _rolled_out, generate.NAMESPACE)
            for pod in before:
                await cluster.until(Pod, pod, lambda pod: pod is None, generate.NAMESPACE)

    async def pods(self, name: str) -> list[str]:
        """The names of the pods of a DaemonSet."""
        labels: Any = {"app.kubernetes.io/component": name.removeprefix("autoclave-")}
        async with self._cluster() as cluster:
            listed = cluster.client.list(Pod, namespace=generate.NAMESPACE, labels=labels)
            return [pod.to_dict()["metadata"]["name"] async for pod in listed]

    @asynccontextmanager
    async def _cluster(self) -> AsyncIterator[Cluster]:
        async with Cluster.connect() as client:
            yield Cluster(client, self._logs)


def _rolled_out(daemon_set) -> bool:
    if daemon_set is None or daemon_set.status is None:
        return False
    status = daemon_set.status.to_dict()
    if daemon_set.metadata.generation != status.get("observedGeneration"):
        return False
    wanted = status["desiredNumberScheduled"]
    return bool(status.get("updatedNumberScheduled") == status.get("numberAvailable") == wanted > 0)
