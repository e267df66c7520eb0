"""The console of ``python -m demo.standins``: runs commands, prints changes."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

from demo.standins.allocation import KubeletPanic
from demo.standins.kubelet import Kubelet, NotRunning, PodEnded
from demo.standins.pods import Container, ContainerKind, Pod

HELP = """\
admit POD RESOURCE=COUNT [init:RESOURCE=COUNT] [sidecar:RESOURCE=COUNT]   containers are named c0, c1 ...
run POD RESOURCE=COUNT ...     admit it and start its containers
sync POD                       start its waiting containers
restart POD [CONTAINER]        its container has ended and is started again
finish POD, delete POD, force-delete POD
stop, kill, start              the kubelet itself
"""


def parse(name: str, requests: list[str]) -> Pod:
    """A pod with one container for each request."""
    containers = []
    for number, request in enumerate(requests):
        kind, colon, rest = request.rpartition(":")
        resource, equals, count = rest.partition("=")
        known = not colon or kind in ("init", "sidecar")
        if not known or not equals or not count.isdecimal():
            raise ValueError(
                f"cannot read {request!r}: write RESOURCE=COUNT, init:RESOURCE=COUNT or sidecar:RESOURCE=COUNT"
            )
        containers.append(
            Container(f"c{number}", {resource: int(count)}, ContainerKind(kind) if colon else ContainerKind.APP)
        )
    return Pod(name, tuple(containers))


def write_line(text: str) -> None:
    """Write one line and flush."""
    sys.stdout.write(text.rstrip() + "\n")
    sys.stdout.flush()


class Console:
    """Runs commands, prints changes."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self._pods: dict[str, Pod] = {}
        self._printed_calls = self._printed_registrations = 0
        self._lists: dict[str, dict[str, str]] = {}

    async def run(self, line: str) -> None:
        """Run one command; print why it fails."""
        try:
            match line.split():
                case []:
                    return
                case ["stop" | "kill" | "start" as verb]:
                    await {"stop": self._kubelet.stop, "kill": self._kubelet.kill, "start": self._kubelet.start}[verb]()
                    write_line(f"kubelet: {verb}")
                case ["admit" | "run" as verb, name, *requests]:
                    pod = self._pods[name] = parse(name, requests)
                    await (self._kubelet.admit(pod) if verb == "admit" else self._kubelet.run(pod))
                    self._print_pod(pod)
                case [verb, name, *rest] if name in self._pods:
                    await self._change(verb, self._pods[name], rest)
                    self._print_pod(self._pods[name])
                case _:
                    write_line(HELP)
        except (ValueError, LookupError, NotRunning, PodEnded, KubeletPanic) as error:
            write_line(f"cannot do that: {error}")

    async def _change(self, verb: str, pod: Pod, rest: list[str]) -> None:
        kubelet = self._kubelet
        changes: dict[str, Callable[[Pod], Awaitable[object]]] = {
            "sync": kubelet.sync,
            "finish": kubelet.finish,
            "delete": kubelet.delete,
        }
        changes["force-delete"] = kubelet.force_delete
        if verb == "restart":
            await kubelet.restart_container(pod, rest[0] if rest else pod.containers[-1].name)
        elif verb in changes:
            await changes[verb](pod)
        else:
            raise ValueError(f"unknown command {verb!r}")

    def _print_pod(self, pod: Pod) -> None:
        write_line(f"pod {pod.name}: {pod.phase.value} {pod.message}")
        for name, status in pod.statuses.items():
            write_line(f"pod {pod.name}: {name} {status.state.value} {status.reason} {status.message}")

    def report_changes(self) -> bool:
        """Print what is new; always False, so that ``until`` calls it for ever."""
        for one in self._kubelet.registrations[self._printed_registrations :]:
            write_line(f"register {one.resource} at {one.endpoint}: {one.error or 'ok'}")
        for call in self._kubelet.calls[self._printed_calls :]:
            write_line(f"call {call.method} {call.resource} {','.join(call.ids)}")
        self._printed_registrations, self._printed_calls = len(self._kubelet.registrations), len(self._kubelet.calls)
        for resource in self._kubelet.capacity:
            devices = self._kubelet.devices(resource)
            if devices != self._lists.get(resource):
                self._lists[resource] = devices
                write_line(f"list {resource}: {' '.join(f'{one}={health}' for one, health in devices.items())}")
        return False
