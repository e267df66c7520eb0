"""What kubectl says of a pod: why it was not created, what it waits for, and whether it ever runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from access.probe_answers import Refused, Unanswered, Unsuited
from ground.errors import plain

RUNNING, TERMINATED = "running", "terminated"
NotMade = Refused | Unanswered | Unsuited
_ADMISSION = re.compile(r"\(Forbidden\)|admission webhook|ValidatingAdmissionPolicy|PodSecurity")
_NO_REFUSAL = re.compile(r"\bquota\b|service ?account", re.IGNORECASE)
_NOT_YET = re.compile(r"status unknown for quota|service ?account .*not found", re.IGNORECASE)
_HOPELESS = frozenset({
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError", "StartError", "ContainerCannotRun",
})  # fmt: skip
_NO_CLASS = re.compile(r'\bRuntimeClass "\S+" not found')
_NO_CDI = "unresolvable CDI devices"  # in the words of the runtimes' library
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


def refusal(words: str) -> NotMade:
    """Why the API server has not created a pod. A quota says nothing about a way."""
    why = plain(re.sub(r"^Error from server( \(\w+\))?: ", "", words.strip())) or "kubectl gave no reason"
    if _NO_CLASS.search(words):
        return Unsuited(why)
    return Refused(why) if _ADMISSION.search(words) and not _NO_REFUSAL.search(words) else Unanswered(why)


def is_temporary(refused: NotMade) -> bool:
    """Whether a namespace is too new: its quota is not counted yet, or its account is not there."""
    return _NOT_YET.search(refused.why) is not None


def object_in(words: str) -> dict[str, Any]:
    """The object that kubectl has written as JSON; nothing if it has not."""
    try:
        value = json.loads(words)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def image(status: Mapping[str, Any], container: str) -> str:
    """What the runtime says of a container's image."""
    images = {each["name"]: each.get("imageID", "") for kind in _STATUSES for each in status.get(kind) or ()}
    return str(images.get(container, ""))


def is_unplaced(status: Mapping[str, Any]) -> bool:
    """Whether the scheduler has found no node for a pod yet."""
    return any(each.get("reason") == "Unschedulable" for each in status.get("conditions") or ())


def state(status: Mapping[str, Any], container: str) -> str | Unanswered | Unsuited:
    """What a container waits for, or that it runs or has ended; or else why it never runs."""
    states = {each["name"]: each.get("state", {}) for kind in _STATUSES for each in status.get(kind) or ()}
    own = states.get(container, {})
    word = next(iter(own), "waiting")
    about = own.get(word, {})
    why = _reason(about)
    if about.get("reason") in _HOPELESS:
        return Unsuited(f"the runtime has no such CDI device: {why}") if _NO_CDI in why else Unanswered(why)
    if word in (RUNNING, TERMINATED):
        return word
    if status.get("phase") == "Failed":
        return Unanswered(_reason(status) or "its pod failed")
    unmet = [each.get("message", "") for each in status.get("conditions") or () if each.get("status") == "False"]
    return why or _reason(status) or plain(next(filter(None, unmet), "it waits for its node"))


def _reason(about: Mapping[str, Any]) -> str:
    return plain(": ".join(filter(None, (about.get("reason", ""), about.get("message", "")))))
