"""The policy in force, and what it says about a device.

A policy file that cannot be read or has faults changes nothing: the old policy stays in force, and ``fault`` says why.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from ground.documents.faults import DocumentError
from policies import load, match
from policies.model import Policy, PolicySet
from scrubber.core.model import DeviceInfo

DevicePolicy = match.Matched
"""The policy for one device, the rule that it comes from (``file/rule``), and why this rule applies."""


class ActivePolicy:
    """One policy file, or one of the shipped policies."""

    def __init__(self, source: str) -> None:
        """Load the policy; DocumentError when it has faults."""
        self.source = source
        self.fault = ""
        self.unread = False  # the fault is not in the text: the file could not be read
        self.path = None if source in load.shipped() else Path(source)  # the file to watch; None for a shipped policy
        # The policies and what they say about known devices are replaced together, so that they always agree.
        self._loaded: tuple[PolicySet, dict[str, tuple[DeviceInfo, DevicePolicy]]] = (load.load(source), {})

    @property
    def name(self) -> str:
        """The name in the policy file."""
        return self._loaded[0].name

    @property
    def defaults(self) -> Policy:
        """The policy of every device that no rule matches."""
        return self._loaded[0].defaults

    @property
    def digest(self) -> str:
        """A hash of the whole policy: nodes with equal digests have equal policies."""
        return hashlib.sha256(self._loaded[0].model_dump_json().encode()).hexdigest()[:16]

    def reload(self) -> bool:
        """Load the policy again; True when it has changed. May run in another thread."""
        try:
            fresh = load.load(self.source)
        except (DocumentError, OSError) as error:  # OSError: the shipped policies cannot be read, as without free files
            self.fault = str(error)
            self.unread = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
            return False
        self.fault, self.unread = "", False
        changed = fresh != self._loaded[0]
        self._loaded = (fresh, {})
        return changed

    def device_policy(self, device: DeviceInfo) -> DevicePolicy:
        """The policy for this device."""
        policies, known = self._loaded
        kept = known.get(device.uuid)
        if kept is not None and (kept[0] is device or kept[0] == device):  # identity first: equality is slow
            return kept[1]
        subject = match.Subject(device.uuid, device.index, device.model, device.mig, device.resource)
        found = match.resolve(policies, subject)
        device_policy = replace(found, rule=f"{policies.name}/{found.rule}")
        known[device.uuid] = (device, device_policy)
        return device_policy
