"""Pods on the real node: created, awaited, deleted, and what their programs wrote."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

from lightkube import AsyncClient, KubeConfig
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Node, Pod

from tests.cluster import files
from tests.cluster.programs import IMAGE, KUBECONFIG, NODE
from tests.patience import WITHIN

GPU = "nvidia.com/gpu"
JOURNALS = "/journals"
MOST_SHOWN = 20  # containers
FAULTS = {"DIRTY", "WIPED", "NOGPU"}


@dataclass(frozen=True)
class Line:
    """A line that gpuapp wrote."""

    time: float
    word: str
    text: str


def container(*flags: str, gpus: int = 1, name: str = "main", resource: str = GPU) -> dict[str, Any]:
    """A container with gpuapp, for the specification of a pod."""
    fields = {"POD_UID": "metadata.uid", "POD_NAME": "metadata.name"}
    environment = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/gpuapp", "-journals", JOURNALS, *([] if gpus else ["-without"]), *flags],
        "env": [*environment, {"name": "CONTAINER", "value": name}],
        "resources": {"limits": {resource: str(gpus)}} if gpus else {},
        "volumeMounts": [{"name": "journals", "mountPath": JOURNALS}],
    }


def health(pod: Pod) -> dict[str, str]:
    """The health of a pod's GPUs, as its status shows it."""
    statuses = (pod.to_dict()["status"].get("containerStatuses") or [{}])[0].get("allocatedResourcesStatus") or []
    return {it["resourceID"]: it["health"] for status in statuses for it in status["resources"]}


def waits_for_the_scheduler(pod: Pod | None) -> bool:
    """Whether the scheduler found no place for a pod."""
    conditions = (pod.status.conditions or []) if pod is not None and pod.status is not None else []
    return any(condition.type == "PodScheduled" and condition.status == "False" for condition in conditions)


class Cluster:
    """The API server, as a person uses it, and the pods' journals."""

    def __init__(self, client: AsyncClient, journals: Path) -> None:
        """``journals``: a folder of its own for each test."""
        self.client = client
        self.journals = journals

    @staticmethod
    def connect() -> AsyncClient:
        """A client of the node's API server, with all rights."""
        return AsyncClient(KubeConfig.from_file(KUBECONFIG), namespace="default", trust_env=False)

    # -- pods

    def spec(self, *containers: dict[str, Any], **more) -> dict[str, Any]:
        """The specification of a pod; ``more``: its other fields."""
        return {
            "containers": list(containers),
            "restartPolicy": "Never",
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "volumes": [{"name": "journals", "hostPath": {"path": str(self.journals)}}],
            **more,
        }

    async def create(self, name: str, *containers: dict[str, Any], **more):
        """Create a pod; the scheduler and the kubelet do the rest."""
        pod = {"metadata": {"name": name}, "spec": self.spec(*containers, **more)}
        created: Any = Pod.from_dict(pod)
        return await self.client.create(created)

    async def create_job(self, name: str, spec: dict[str, Any]) -> None:
        """Create a Job; the controllers do the rest."""
        created: Any = Job.from_dict({"metadata": {"name": name}, "spec": spec})
        await self.client.create(created)

    async def hold(self, name: str, *flags: str, gpus: int = 1, **more) -> None:
        """Create a pod, and return when it has filled its GPUs with its secret. ``more``: its other fields."""
        await self.create(name, container(*flags, gpus=gpus), **more)
        holds, ended = asyncio.create_task(self.said(name, "HOLDING")), asyncio.create_task(self.ended(name))
        await asyncio.wait({holds, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in (holds, ended):
            task.cancel()
        await asyncio.wait({holds, ended})
        assert ended.cancelled(), f"{name} failed: {ended.result().status.message}\n{self.story()}"
        holds.result()

    async def delete(self, name: str, grace: int | None = None) -> None:
        """Delete a pod, and do not wait."""
        await self.client.delete(Pod, name, grace_period=grace)

    @staticmethod
    def root(name: str) -> Path:
        """The files of a pod's container, as its program sees them."""
        return Path("/proc", str(_pid(name)), "root")

    @staticmethod
    def crash(name: str) -> None:
        """Kill the program of a pod."""
        os.kill(_pid(name), SIGKILL)

    async def gone(self, name: str) -> None:
        """Return when the API server knows the pod no more."""
        await self.until(Pod, name, lambda pod: pod is None)

    async def ended(self, name: str):
        """The pod, as soon as it has succeeded or failed."""
        return await self.until(Pod, name, lambda pod: pod.status.phase in {"Succeeded", "Failed"})

    async def until(self, kind, name: str, wanted, namespace: str | None = None):
        """An object, as soon as it is as wanted; None stands for an object that does not exist."""
        last = None
        try:
            async with asyncio.timeout(WITHIN) as limit:
                async for last in self.versions(kind, name, namespace):
                    if wanted(last):
                        return last
                    limit.reschedule(asyncio.get_running_loop().time() + WITHIN)  # after each change: a Job takes long
        except TimeoutError:
            status = last.status.to_dict() if last is not None else "does not exist"
            raise AssertionError(f"{name}: {json.dumps(status, default=str)}\n{self.story()}") from None

    async def versions(self, kind, name: str, namespace: str | None = None):
        """An object as it is, and after each change; None while it does not exist. Never ends."""
        wanted: Any = {"metadata.name": name}
        while True:  # the API server ends a watch after some minutes
            listed = self.client.list(kind, fields=wanted, namespace=namespace)
            found = [it async for it in listed]
            yield found[0] if found else None
            version = listed.resourceVersion
            async for change, it in self.client.watch(
                kind, fields=wanted, namespace=namespace, resource_version=version
            ):
                yield None if change == "DELETED" else it

    # -- what pods say

    def lines(self, name: str, container: str = "main") -> list[Line]:
        """What a container has written so far, in all its runs."""
        try:
            text = (self.journals / f"{name}.{container}").read_text()
        except FileNotFoundError:
            return []
        parts = [line.split(" ", 2) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [Line(float(part[0]), part[1].strip(), "".join(part[2:]).strip()) for part in parts]

    def words(self, name: str, container: str = "main") -> list[str]:
        """What a container has written so far; looks at a secret that is intact count once."""
        words = [line.word for line in self.lines(name, container)]
        return [word for index, word in enumerate(words) if word != "INTACT" or words[index - 1] != "INTACT"]

    async def said(self, name: str, word: str, container: str = "main", more: int = 0) -> Line:
        """The last line with this word, as soon as there is one; ``more``: as soon as there are so many new ones."""

        def spoken() -> list[Line]:
            return [line for line in self.lines(name, container) if line.word == word]

        wanted = len(spoken()) + more if more else 1
        try:
            await files.until(self.journals, lambda: len(spoken()) >= wanted)
        except TimeoutError:
            pod = (await self.client.get(Pod, name)).to_dict()
            why = json.dumps(pod["status"], default=str)
            raise AssertionError(f"{name} did not say {word}: {why}\n{self.story()}") from None
        return spoken()[-1]

    def gpus(self, name: str) -> set[str]:
        """The indices of the GPUs that a pod was given."""
        texts = [line.text for line in self.lines(name) if line.word in {"CLEAN", "OWN"}]
        return {text.split()[0].removeprefix("gpu=simulated-gpu") for text in texts}

    def story(self) -> str:
        """What the pods of this test wrote."""
        names = sorted(file.name.rsplit(".", 1) for file in self.journals.iterdir())
        shown = [f"{pod} {name}: {' '.join(self.words(pod, name))}" for pod, name in names]
        return "\n".join(shown[-MOST_SHOWN:])

    def faults(self) -> list[str]:
        """Containers that found the bytes of another pod, lost their own, or got no GPU."""
        names = sorted(file.name.rsplit(".", 1) for file in self.journals.iterdir())
        lines = [(pod, name, line) for pod, name in names for line in self.lines(pod, name)]
        return [f"{pod} {name}: {it.word} {it.text}" for pod, name, it in lines if it.word in FAULTS]

    async def refused(self) -> list[str]:
        """The pods that failed, and what the kubelet says of them."""
        pods = [pod async for pod in self.client.list(Pod)]
        statuses = [pod.to_dict()["status"] for pod in pods]
        return [f"{it.get('reason')}: {it.get('message')}" for it in statuses if it["phase"] == "Failed"]

    async def names(self) -> list[str]:
        """The pods that exist."""
        return [str(pod.to_dict()["metadata"]["name"]) async for pod in self.client.list(Pod)]

    # -- the node

    async def offered(self, count: int, resource: str = GPU, node: str = NODE) -> None:
        """The scheduler may place so many GPUs."""
        await self.until(Node, node, lambda node: (node.status.allocatable or {}).get(resource) == str(count))


def _pid(pod: str) -> int:
    """The program of a pod, which shares no variables with other programs of the node."""
    [pid] = [int(it.parent.name) for it in Path("/proc").glob("[0-9]*/environ") if f"POD_NAME={pod}" in _text(it)]
    return pid


def _text(file: Path) -> list[str]:
    """The parts of a file of /proc; none if its process has ended."""
    try:
        return file.read_text(errors="replace").split("\0")
    except OSError:
        return []
