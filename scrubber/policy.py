"""The policy file that is in force: loaded, loaded anew, faulty; and the rules that it gives one device.

A policy file that cannot be read or has faults changes nothing: the old policy stays in force, and ``fault`` says why.
This holds for a start, too: a node must not go out of service because of a typing error that nobody has noticed. At
the first start there is no old policy. Then the file must be right: no shipped policy is a safe guess, because one that
enforces may end processes that the operator wants to keep.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from ground import calendar_time, paths, private_files
from ground.documents.faults import DocumentError
from policies import load, match, policy_model
from policies.policy_model import FenceMode, Policy, PolicySet
from scrubber.core.model import DeviceInfo

DevicePolicy = match.Matched
"""The policy for one device, the rule that it comes from (``file/rule``), and why this rule applies."""


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
        self._fence = fence
        self._exempt = exempt_units, exempt_namespaces
        self.fault = ""
        self.unread = False  # the fault is not in the text: the file could not be read
        self.path = None if source in load.shipped() else Path(source)  # the file to watch; None for a shipped policy
        # The policies, their digest and what they say about known devices are replaced together, so that they agree.
        self._loaded: tuple[PolicySet, str, dict[str, tuple[DeviceInfo, DevicePolicy]]]
        self._kept = kept
        self.outdated = ""  # the fields of an older version, which change nothing, and their places in the file
        self.not_kept = ""  # why a later start cannot have the policy in force
        self._text = b""  # of the policy in force, if it was read from the file
        self._last = ""  # the name and date of the policy in force since the start, if the file had faults then
        try:
            policies, self._text = self._load()
        except DocumentError as error:
            policies = self._last_good(error)
        self._loaded = (policies, digest_of(policies), {})

    @property
    def name(self) -> str:
        """The name in the policy file."""
        return self._loaded[0].name

    @property
    def defaults(self) -> Policy:
        """The policy of every device that no rule matches."""
        return self._loaded[0].defaults

    @property
    def fences(self) -> bool:
        """Whether a device may have a fence."""
        return any(policy.fence_mode is not FenceMode.OFF for policy in self._loaded[0].policies)

    @property
    def digest(self) -> str:
        """A hash of the whole policy: nodes with equal digests have equal policies."""
        return self.name_and_digest[1]

    @property
    def name_and_digest(self) -> tuple[str, str]:
        """Those of the same policy, also while another one is loaded."""
        policies, digest, _ = self._loaded
        return policies.name, digest

    @property
    def stays(self) -> str:
        """Which policy is in force instead of a file with faults."""
        if self._last:
            return f"the last policy without faults is in force: {self._last}"
        return f"the policy {self.name} stays in force"

    def _load(self) -> tuple[PolicySet, bytes]:
        """The policies, and their text if it is in a file."""
        if self.path is None:
            return self._fenced(load.load(self.source)), b""
        text = load.read(self.source)
        policies = self._fenced(load.load_bytes(text, self.source))
        self.outdated = "\n".join(map(str, load.outdated(text, self.source)))
        return policies, text

    def _fenced(self, policies: PolicySet) -> PolicySet:
        return policies if self._fence is None else policies.fenced(self._fence)

    def _last_good(self, error: DocumentError) -> PolicySet:
        """The last policy without faults that this file has held; the error if there is none."""
        try:
            content = private_files.content(self._kept) if self._kept is not None else b""
            if self._kept is None or not content.startswith(self._origin()):
                raise error
            policies = self._fenced(load.load_bytes(content, str(self._kept)))
            since = calendar_time.utc(self._kept.stat().st_mtime)
        except (DocumentError, OSError):
            raise error from None
        self._last = f"{policies.name}, of {since:%Y-%m-%d %H:%M:%S} UTC"
        self._fail(error)
        return policies

    def _origin(self) -> bytes:
        """The first line of a kept policy: the policy of another file is not the last one of this file."""
        return f"# {self.source}\n".encode()

    def _fail(self, error: DocumentError | OSError) -> None:
        self.fault = f"{error}\n{self.stays}" if self._last else str(error)
        self.unread = isinstance(error, OSError) or isinstance(error.__cause__, OSError)

    def keep(self) -> None:
        """Keep the policy of the start for a later one. May run in another thread.

        An error becomes the fault: the next reload tries again.
        """
        try:
            if not self._last:
                self._keep(self._loaded[0], self._text)
        except OSError as error:
            self._fail(error)

    def _keep(self, policies: PolicySet, text: bytes) -> None:
        """Keep a policy for a later start, before it is in force.

        If it cannot be kept, then none is: an old one must not come into force again. OSError if an old one cannot be
        removed either. What its receipts name by a digest stays for ever.
        """
        self.not_kept = ""
        if self._kept is None:
            return
        content = self._origin() + text
        try:
            if self.path is None:
                self._forget(self._kept)
            elif not self._kept.exists() or private_files.content(self._kept) != content:
                private_files.replace(self._kept, content)
            self._keep_for_receipts(policies, self._kept.parent)
        except OSError as error:
            self.not_kept = str(error)
            self._forget(self._kept)

    @staticmethod
    def _forget(kept: Path) -> None:
        try:
            if kept.is_symlink() or kept.exists():
                kept.unlink()
                private_files.sync_directory(kept.parent)
        except OSError as error:
            why = f"cannot replace the last policy {kept}, nor remove it: {error.strerror}"
            raise OSError(f"{why}; a later start could go back to it: look for a fault of its disk") from error

    def _keep_for_receipts(self, policies: PolicySet, state_dir: Path) -> None:
        texts = dict[Path, str]()
        for policy in policies.policies:
            texts[paths.proof_settings(state_dir, policy.proof_digest)] = policy.proof_settings
            names = policy.exempt_names(*self._exempt)
            texts[paths.exempt_names(state_dir, policy_model.digest(names))] = names
        for path, text in texts.items():
            if text and not path.exists():
                private_files.make_folder(path.parent)
                private_files.replace(path, text.encode())

    def reload(self) -> bool:
        """Load the policy again; True when it has changed. May run in another thread.

        It is kept before it is in force: after a kill, the next start must not go back to the policy before it.
        """
        try:
            policies, text = self._load()
            self._keep(policies, text)
        except (DocumentError, OSError) as error:  # OSError: the shipped policies cannot be read, as without free files
            self._fail(error)
            return False
        self.fault, self.unread, self._last = "", False, ""
        changed = policies != self._loaded[0]
        self._loaded, self._text = (policies, digest_of(policies), {}), text
        return changed

    def device_policy(self, device: DeviceInfo) -> DevicePolicy:
        """The policy for this device."""
        policies, _, cache = self._loaded
        kept = cache.get(device.uuid)
        if kept is not None and (kept[0] is device or kept[0] == device):  # identity first: equality is slow
            return kept[1]
        subject = match.Subject(device.uuid, device.index, device.model, device.mig, device.resource)
        resolved = match.resolve(policies, subject)
        device_policy = replace(resolved, rule=f"{policies.name}/{resolved.rule}")
        cache[device.uuid] = (device, device_policy)
        return device_policy


def digest_of(policies: PolicySet) -> str:
    """The digest of a whole policy, which the ledger notes."""
    return hashlib.sha256(policies.model_dump_json().encode()).hexdigest()[:16]
