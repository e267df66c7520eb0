"""The policy in force: loaded once, loaded again on request, and what it says of a device.

A file that cannot be read or is wrong changes nothing: the policy that was in force stays, and ``fault`` says so.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from policies import load, match
from policies.faults import PolicyError
from policies.model import Policy, PolicySet
from scrubber.core.model import DeviceInfo


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """The policy for one device, the rule it comes from (``file/rule``), and why this one."""

    policy: Policy
    rule: str
    why: str


class ActivePolicy:
    """One policy file, or one of the shipped policies."""

    def __init__(self, source: str) -> None:
        """Load it; a fault at the start is the caller's to report."""
        self.source = source
        self.fault = ""
        self.path = None if source in load.shipped() else Path(source)  # the file to watch, where there is one
        # One attribute, replaced whole: a ruling is never kept beside a policy that it does not come from.
        self._book: tuple[PolicySet, dict[str, tuple[DeviceInfo, DevicePolicy]]] = (load.load(source), {})

    @property
    def name(self) -> str:
        """The name the policy gives itself."""
        return self._book[0].name

    @property
    def digest(self) -> str:
        """Names all that it says: nodes that show the same one are under the same policy."""
        return hashlib.sha256(self._book[0].model_dump_json().encode()).hexdigest()[:16]

    def reload(self) -> bool:
        """Read it again; may be done in another thread. True when another policy is in force now."""
        try:
            fresh = load.load(self.source)
        except PolicyError as error:
            self.fault = str(error)
            return False
        self.fault = ""
        changed = fresh != self._book[0]
        self._book = (fresh, {})
        return changed

    def device_policy(self, device: DeviceInfo) -> DevicePolicy:
        """What applies to this device."""
        policies, known = self._book
        kept = known.get(device.uuid)
        if kept is not None and (kept[0] is device or kept[0] == device):  # to compare takes longer than all the rest
            return kept[1]
        device_policy = _match(policies, device)
        known[device.uuid] = (device, device_policy)
        return device_policy


def _match(policies: PolicySet, device: DeviceInfo) -> DevicePolicy:
    subject = match.Subject(device.uuid, device.index, device.model, device.mig, device.resource)
    found = match.resolve(policies, subject)
    return DevicePolicy(found.policy, f"{policies.name}/{found.rule}", found.why)
