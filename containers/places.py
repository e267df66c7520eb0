"""The commands of docker and kubectl that both public tests use."""

from __future__ import annotations

from collections.abc import Sequence

STARTS_WITHIN = 600  # seconds until a container runs: its image may have to come first
_REMOVE_SCRIPT = """
for try in 1 2 3 4 5; do # docker may be removing it already, and says so as an error
  found=$("$2" ps --all --quiet --filter "name=^$1$") || exit
  if [ -z "$found" ] || "$2" rm --force $found; then exit; fi
  sleep 1
done
exit 1"""
_WAITS = (  # for a node, or for its image
    '{.status.conditions[?(@.type=="PodScheduled")].message}{.status.message}'
    "{.status.containerStatuses[*].state.waiting.message}"
)


def removed_by_docker(name: str, program: str = "docker") -> list[str]:
    """Removes a container in whatever state it is. ``program``: docker, or one that takes the same commands."""
    return ["sh", "-c", _REMOVE_SCRIPT, "sh", name, program]


def kubectl(namespace: str) -> list[str]:
    """The beginning of a command. ``namespace``: empty for that of the account."""
    return ["kubectl", *(["--namespace", namespace] if namespace else [])]


def delete(namespace: str, pod: str) -> list[str]:
    """Deletes a pod, and waits until it is gone."""
    return [*kubectl(namespace), "delete", "pod", pod, "--ignore-not-found"]


def force_delete(namespace: str, pod: str) -> list[str]:
    """Deletes a pod; nobody waits for the end of its containers."""
    return [*delete(namespace, pod), "--force", "--grace-period=0"]


def waits_for(namespace: str, pod: str) -> list[str]:
    """Says what a pod waits for."""
    return [*kubectl(namespace), "get", "pod", pod, "--ignore-not-found", f"--output=jsonpath={_WAITS}"]


def can_i(namespace: str, rights: Sequence[str]) -> dict[str, list[str]]:
    """For each right, such as ``create pods``, the command that asks the API server for it."""
    asks = {}
    for right in rights:
        verb, resource = right.split()
        resource, _, part = resource.partition("/")  # kubectl takes what stands after a slash for a name
        subresource = [f"--subresource={part}"] if part else []
        asks[right] = [*kubectl(namespace), "auth", "can-i", verb, resource, *subresource]
    return asks
