"""Pods of a namespace of their own, made from the manifests by kubectl."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from access import manifest_files, pod_states
from access.cluster_offers import expect_offers
from access.hearing import ANSWERS_WITHIN, Ear, Secrets, answer_of
from access.interruption import Interruption
from access.manifest_files import NOT_ROOT, Cluster
from access.pod_states import RUNNING, TERMINATED, NotMade
from access.probe_answers import Outcome, Refused, Unanswered
from containers import places
from containers.commands import COMMANDS_WITHIN, ContainerFailed, asked, expect_rights, run
from ground.errors import plain

RIGHTS = ("create namespaces", "get namespaces", "delete namespaces")
RIGHTS_INSIDE = (
    *(f"{verb} pods" for verb in ("create", "get", "delete")), "get pods/log", "patch pods/ephemeralcontainers",
    "create configmaps", "create resourcequotas",
)  # fmt: skip
CLAIM_RIGHTS = ("create resourceclaimtemplates.resource.k8s.io",)
PLACED_WITHIN = 120.0  # seconds until the scheduler finds a node for a pod: a GPU may be in use for a moment
_SAYS_AFTER, _SAYS_EVERY = 5.0, 30.0  # seconds: what a pod waits for
_ENDS_WITHIN = 30.0  # seconds, of a pod that nothing holds up
_SETTLED_WITHIN = 30.0  # seconds until a new namespace has its quota counted, and an account
_IN_OWNER = ("second-container", "ephemeral-container")
_NEXT = ("leftover", "kept-open")  # their pods get the GPU after an owner
_WITH_OWNER = ("owner", "sharing-owner")


@dataclass
class Pods:
    """The pods of one run. ``tell``: hears what a pod waits for."""

    cluster: Cluster
    interruption: Interruption
    tell: Callable[[str], None]
    own: Secrets = field(default_factory=Secrets)
    user: str = "0"
    pause: float = 0.5  # seconds between two looks at a pod
    _has_namespace: bool = False

    def expect(self) -> None:
        """ContainerFailed if the account lacks a right, or the cluster what the flags name. Nothing is made.

        Tells at once why the owner must wait.
        """
        claim = CLAIM_RIGHTS if self.cluster.device_class else ()
        inside = places.can_i(self.own.namespace, (*RIGHTS_INSIDE, *claim))
        expect_rights(places.can_i("", RIGHTS) | inside, "docs/access.md")
        if why := expect_offers(self.cluster):
            self.tell(f"owner waits: {why}")

    def begin(self) -> None:
        """Make the namespace with its quota, and find out whether a plain pod may be root."""
        self.interruption.check()
        self._has_namespace = True
        self._need("namespace")
        run([*self._kubectl, "create", "configmap", "probe", f"--from-file=probe.py={manifest_files.PROBE}"])
        if self.cluster.device_class:
            self._need("claim")
        ends = time.monotonic() + _SETTLED_WITHIN
        while (refused := self._plain()) and pod_states.is_temporary(refused) and time.monotonic() < ends:
            self.interruption.wait(self.pause)
        if isinstance(refused, Refused):
            self.user = NOT_ROOT
            refused = self._plain()
        if refused is not None:
            raise ContainerFailed(f"a pod without a GPU and without rights is refused: {refused.why}")

    def start(self, role: str, numbers: str = "", ask: str = "") -> NotMade | None:
        """Create the pod of a role; a second container is in the owner's pod already."""
        self.interruption.check()
        if role == "second-container":
            return None
        if role == "ephemeral-container":
            return _not_made(self._debugging(ask))
        return self._create(role, numbers=numbers, owner=ask)

    def answer(self, role: str, within: float) -> Outcome:
        """Wait until the container runs or has ended, and read the first line of its log."""
        began, says, said = time.monotonic(), _SAYS_AFTER, ""
        pod, container = _place(role)
        while (state := pod_states.state(status := self._status(role), container)) not in (RUNNING, TERMINATED):
            self.interruption.check()
            if not isinstance(state, str):
                return state
            waited, unplaced = time.monotonic() - began, pod_states.is_unplaced(status)
            if waited > (limit := min(within, PLACED_WITHIN) if unplaced else within):
                check = f"; check {self.cluster.flags}" if unplaced and role == "owner" else ""
                return Unanswered(f"it did not start within {limit:g} s: {state}{check}")
            if waited > says or (unplaced and state != said):
                self.tell(f"{role} waits: {state}")
                says, said = waited + _SAYS_EVERY, state
            self.interruption.wait(self.pause)
        logs = Ear([*self._kubectl, "logs", pod, f"--container={container}", "--follow"])
        try:
            return answer_of(logs, self.own.nonce, ANSWERS_WITHIN, self.interruption)
        finally:
            logs.clear_away()

    def runs(self, role: str) -> bool:
        """Whether its container runs."""
        return pod_states.state(self._status(role), _place(role)[1]) == RUNNING

    def address(self, role: str) -> str:
        """The address of the pod."""
        address = self._status(role).get("podIP", "")
        return f"{address}:{self.own.port}" if re.fullmatch(r"[0-9.]+", address) else ""

    def image(self, role: str) -> str:
        """Words with the digest of its image, or without one."""
        return pod_states.image(self._status(role), _place(role)[1])

    def leave_behind(self, successor: str) -> tuple[NotMade | None, None]:
        """Delete the owner's pod by force, while the next one waits for its GPU: the old process has two seconds."""
        refused = self.start(successor, ask=self.address("owner"))
        run([*places.force_delete(self.own.namespace, "owner"), "--wait=false"])
        return refused, None

    def end(self, role: str) -> None:
        """Delete the pod, and wait until it is gone. Who has its GPU open may hold it up: then go on after a time."""
        pod, _ = _place(role)
        if role not in _IN_OWNER:
            self._delete(self._kubectl, "pod", pod, within=_ENDS_WITHIN)

    def close(self) -> None:
        """Delete the namespace with all that is in it, and wait until it is gone."""
        name = self.own.namespace
        if self._has_namespace and not self._delete(["kubectl"], "namespace", name, within=COMMANDS_WITHIN):
            raise ContainerFailed(f"the namespace {name} was not gone within {COMMANDS_WITHIN:g} s")

    def facts(self) -> dict[str, str]:
        """Versions, as far as the account may read them, and what the cluster admits to the namespace."""
        info = self._read("get", "node", self.cluster.node).get("status", {}).get("nodeInfo", {})
        labels = self._read("get", "namespace", self.own.namespace).get("metadata", {}).get("labels", {})
        server = self._read("version").get("serverVersion", {})
        level = {"pod-security": labels.get("pod-security.kubernetes.io/enforce", "that of the cluster")}
        words = {name: info.get(name, "") for name in ("kubeletVersion", "containerRuntimeVersion", "osImage")}
        known = {"node": self.cluster.node, "api-server": server.get("gitVersion", ""), **words, **level}
        known["user of plain pods"] = self.user
        return {name: plain(str(text)) for name, text in known.items() if text}

    def preview(self) -> str:
        """All that a run would create, as manifests."""
        debug = " ".join(["# into the owner's pod:", *self._debugging("ADDRESS")])
        return f"{manifest_files.preview(self.cluster, self.own)}---\n{debug}\n"

    @property
    def _kubectl(self) -> list[str]:
        return places.kubectl(self.own.namespace)

    def _delete(self, kubectl: list[str], kind: str, name: str, within: float) -> bool:
        """Delete an object; whether it is gone in this time. To wait itself, kubectl would need the right to list."""
        run([*kubectl, "delete", kind, name, "--ignore-not-found", "--wait=false"])
        ends, looks = time.monotonic() + within, [*kubectl, "get", kind, name, "--ignore-not-found", "--output=name"]
        while (done := asked(looks)).returncode or done.stdout.strip():
            if time.monotonic() > ends:
                return False
            time.sleep(self.pause)
        return True

    def _plain(self) -> NotMade | None:
        """Why the API server would refuse a pod without rights; it makes none."""
        return self._create("no-request", "--dry-run=server")

    def _need(self, name: str) -> None:
        if refused := self._create(name):
            raise ContainerFailed(f"cannot create the {name}: {refused.why}")

    def _create(self, role: str, *flags: str, **values: str) -> NotMade | None:
        way = re.sub(r"-\d+$", "", role)  # the second pod of a way has the same manifest
        manifest = "successor" if way in _NEXT else way
        text = manifest_files.filled(manifest, self.cluster, self.own, **{"name": role, "user": self.user, **values})
        return _not_made(["kubectl", "create", "--filename=-", *flags], text)

    def _debugging(self, ask: str) -> list[str]:
        probe = ["try", f"--nonce={self.own.nonce}", f"--secret={self.own.secret}", f"--nodes={self.cluster.nodes}"]
        flags = ["--profile=baseline", f"--custom={manifest_files.HERE / 'ephemeral-container.yaml'}", "--quiet"]
        command = ["debug", "owner", f"--image={self.cluster.image}", "--container=ephemeral-container", *flags]
        return [*self._kubectl, *command, "--", "python3", "/probe/probe.py", *probe, f"--ask={ask}"]

    def _status(self, role: str) -> dict[str, Any]:
        status: dict[str, Any] = self._read("get", "pod", _place(role)[0]).get("status", {})
        return status

    def _read(self, *words: str) -> dict[str, Any]:
        """What kubectl reads; nothing if it may not."""
        return pod_states.object_in(asked([*self._kubectl, *words, "--output=json"]).stdout)


def _place(role: str) -> tuple[str, str]:
    """The names of the pod and of the container."""
    if role in _IN_OWNER:
        return "owner", role
    return role, "owner" if role in _WITH_OWNER else "successor" if role.startswith(_NEXT) else "outsider"


def _not_made(command: list[str], text: str | None = None) -> NotMade | None:
    """Why a command of kubectl has created nothing; None: it has."""
    done = asked(command, text)
    return None if done.returncode == 0 else pod_states.refusal(done.stderr)
