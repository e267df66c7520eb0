"""The policy file that is in force: loaded, loaded anew, faulty; and the rules that it gives one device.

A policy file that cannot be read or has faults changes nothing: the old policy stays in force, and ``fault`` says why.
This holds for a start, too: a node must not go out of service because of a typing error that nobody has noticed. At
the first start there is no old policy. Then the file must be right: no shipped policy is a safe guess, because one that
enforces may end processes that the operator wants to keep.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from ground import calendar_time, paths, private_files
from ground.documents.faults import DocumentError
from policies import load, match, policy_model
from policies.policy_model import Policy, PolicySet
from policies.values import FenceMode
from scrubber.core.model import DeviceInfo
from scrubber.node import clock

DevicePolicy = match.Matched
"""The policy for one device, the rule that it comes from (``file/rule``), and why this rule applies."""


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy without faults. It is replaced as a whole, so that its parts agree."""

    policies: PolicySet
    text: bytes | None = None  # of its file; None: it is a shipped one, or was kept
    kept_since: str = ""  # its name and date, if it was kept and the file had faults at the start
    of_devices: dict[str, tuple[DeviceInfo, DevicePolicy]] = field(default_factory=dict)  # what it says of known ones
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_of(self.policies))

    def of(self, device: DeviceInfo) -> DevicePolicy:
        """What it says about this device."""
        known = self.of_devices.get(device.uuid)
        if known is not None and (known[0] is device or known[0] == device):  # identity first: equality is slow
            return known[1]
        subject = match.Subject(device.uuid, device.index, device.model, device.mig, device.resource)
        resolved = match.resolve(self.policies, subject)
        device_policy = replace(resolved, rule=f"{self.policies.name}/{resolved.rule}")
        self.of_devices[device.uuid] = (device, device_policy)
        return device_policy


class LastPolicyFile:
    """The file with the last policy without faults that the policy file has held."""

    def __init__(self, path: Path, source: str) -> None:
        """``source``: the policy file. The last policy of another file is not the last one of this file."""
        self.path = path
        self._origin = f"# {source}\n".encode()  # the first line

    def read(self) -> bytes | None:
        """The policy; None if it is that of another file. OSError if it cannot be read."""
        content = private_files.content(self.path)
        return content if content.startswith(self._origin) else None

    def write(self, text: bytes) -> None:
        """Replace the policy."""
        content = self._origin + text
        if not self.path.exists() or private_files.content(self.path) != content:
            private_files.replace(self.path, content)

    def remove(self) -> None:
        """Let no later start go back to it."""
        try:
            if self.path.is_symlink() or self.path.exists():
                self.path.unlink()
                private_files.sync_directory(self.path.parent)
        except OSError as error:
            why = f"cannot replace the last policy {self.path}, nor remove it: {error.strerror}"
            raise OSError(f"{why}; a later start could go back to it: look for a fault of its disk") from error


class ActivePolicy:
    """One policy file, or one of the shipped policies."""

    def __init__(
        self, source: str, kept: Path | None = None, fence: FenceMode | None = None,
        exempt_units: tuple[str, ...] = (), exempt_namespaces: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Load the policy; DocumentError when it has faults, and no policy without faults is kept.

        ``kept``: the file for the last policy without faults. ``fence``: the ``fence.mode`` instead of those in the
        file. ``exempt_...``: who may open a device at any time, beside those in the file.
        """
        self.source = source
        self.path = None if source in load.shipped() else Path(source)  # the file to watch; None for a shipped policy
        self.fault = ""
        self.unread = False  # the fault is not in the text: the file could not be read
        self.changed = 0.0  # the wall time at which another policy came into force; 0: none has since the start
        self.not_kept = ""  # why a later start cannot have the policy in force
        self._fence = fence
        self._exempt = exempt_units, exempt_namespaces
        self._last = LastPolicyFile(kept, source) if kept is not None else None
        try:
            self._in_force = self._load()
        except DocumentError as error:
            last = self._load_last()
            if last is None:
                raise
            self._in_force = last
            self._report(error)

    @property
    def name(self) -> str:
        """The name in the policy file."""
        return self._in_force.policies.name

    @property
    def defaults(self) -> Policy:
        """The policy of every device that no rule matches."""
        return self._in_force.policies.defaults

    @property
    def fences(self) -> bool:
        """Whether a device may have a fence."""
        return any(policy.fence_mode is not FenceMode.OFF for policy in self._in_force.policies.policies)

    @property
    def digest(self) -> str:
        """A hash of the whole policy: nodes with equal digests have equal policies."""
        return self._in_force.digest

    @property
    def name_and_digest(self) -> tuple[str, str]:
        """Those of the same policy, also while another one is loaded."""
        in_force = self._in_force
        return in_force.policies.name, in_force.digest

    @property
    def stays(self) -> str:
        """Which policy is in force instead of a file with faults."""
        if self._in_force.kept_since:
            return f"the last policy without faults is in force: {self._in_force.kept_since}"
        return f"the policy {self.name} stays in force"

    def device_policy(self, device: DeviceInfo) -> DevicePolicy:
        """The policy for this device."""
        return self._in_force.of(device)

    def keep(self) -> None:
        """Keep the policy of the start for a later one. May run in another thread.

        An error becomes the fault: the next reload tries again.
        """
        if self._in_force.kept_since:
            return
        try:
            self._replace_last(self._in_force)
        except OSError as error:
            self._report(error)

    def reload(self) -> bool:
        """Load the policy again; True when it has changed. May run in another thread.

        It is kept before it is in force: after a kill, the next start must not go back to the policy before it.
        """
        try:
            loaded = self._load()
            self._replace_last(loaded)
        except (DocumentError, OSError) as error:  # OSError: the shipped policies cannot be read, as without free files
            self._report(error)
            return False
        changed = loaded.policies != self._in_force.policies
        self.fault, self.unread, self._in_force = "", False, loaded
        if changed:
            self.changed = clock.now().wall
        return changed

    def _load(self) -> LoadedPolicy:
        if self.path is None:
            return LoadedPolicy(self._fenced(load.load(self.source)))
        text = load.read(self.source)
        return LoadedPolicy(self._fenced(load.load_bytes(text, self.source)), text)

    def _load_last(self) -> LoadedPolicy | None:
        """The last policy without faults that this file has held; None if there is none."""
        try:
            text = self._last.read() if self._last is not None else None
            if self._last is None or text is None:
                return None
            policies = self._fenced(load.load_bytes(text, str(self._last.path)))
            since = calendar_time.utc(self._last.path.stat().st_mtime)
        except (DocumentError, OSError):
            return None
        return LoadedPolicy(policies, kept_since=f"{policies.name}, of {since:%Y-%m-%d %H:%M:%S} UTC")

    def _fenced(self, policies: PolicySet) -> PolicySet:
        return policies if self._fence is None else policies.fenced(self._fence)

    def _report(self, error: DocumentError | OSError) -> None:
        self.fault = f"{error}\n{self.stays}" if self._in_force.kept_since else str(error)
        self.unread = isinstance(error, OSError) or isinstance(error.__cause__, OSError)

    def _replace_last(self, loaded: LoadedPolicy) -> None:
        """Write a policy down for a later start, before it is in force.

        If it cannot be written, none stays: an old one must not come into force again. OSError if an old one cannot be
        removed either. What receipts and rows of the ledger name by a digest stays for ever.
        """
        self.not_kept = ""
        if self._last is None:
            return
        try:
            if loaded.text is None:
                self._last.remove()
            else:
                self._last.write(loaded.text)
            for path, text in named_by_digests(loaded.policies, self._exempt, self._last.path.parent).items():
                if not path.exists():
                    private_files.make_folder(path.parent)
                    private_files.replace(path, text.encode())
        except OSError as error:
            self.not_kept = str(error)
            self._last.remove()


def named_by_digests(
    policies: PolicySet, exempt: tuple[tuple[str, ...], tuple[str, ...]], state_dir: Path
) -> dict[Path, str]:
    """The files that receipts and rows of the ledger name by a digest. ``exempt``: units, and namespaces."""
    texts = {paths.whole_policy(state_dir, digest_of(policies)): policies.model_dump_json()}
    for policy in policies.policies:
        names = policy.exempt_names(*exempt)
        texts[paths.proof_settings(state_dir, policy.proof_digest)] = policy.proof_settings
        texts[paths.exempt_names(state_dir, policy_model.digest(names))] = names
    return {path: text for path, text in texts.items() if text}


def digest_of(policies: PolicySet) -> str:
    """The digest of a whole policy, which the ledger notes."""
    return hashlib.sha256(policies.model_dump_json().encode()).hexdigest()[:16]
