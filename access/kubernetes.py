"""Pods of a namespace of their own, made from the manifests by kubectl."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from access import manifest_files
from access.attached import ANSWERS_WITHIN, LIVES, Ear, Secrets, answer_of
from access.interruption import Interruption
from access.probe_answers import Outcome, Refused, Unanswered, Unsuited
from containers import places
from containers.commands import ContainerFailed, asked, expect_rights, run
from ground.errors import plain

NotMade = Refused | Unanswered | Unsuited
PORTS = range(20000, 30000)  # the owner listens on one, in the network of its pod
NOT_ROOT = "65532"
RIGHTS = ("create namespaces", "get namespaces", "delete namespaces")
RIGHTS_INSIDE = (
    *(f"{verb} pods" for verb in ("create", "get", "delete")), "get pods/log", "patch pods/ephemeralcontainers",
    "create configmaps", "create resourcequotas",
)  # fmt: skip
CLAIM_RIGHTS = ("create resourceclaimtemplates.resource.k8s.io",)
_SAYS_EVERY = 5.0  # seconds: what a pod waits for
_ADMISSION = re.compile(r"\(Forbidden\)|admission webhook|ValidatingAdmissionPolicy|PodSecurity")
_NO_REFUSAL = re.compile(r"\bquota\b|service ?account", re.IGNORECASE)
_NOT_YET = re.compile(r"status unknown for quota|service ?account .*not found", re.IGNORECASE)
_SHARED_WITHIN = 30  # seconds for the end of a pod that has handed its GPU on
_SETTLED_WITHIN = 30.0  # seconds until a new namespace has its quota counted, and an account
_HOPELESS = frozenset({
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError", "StartError", "ContainerCannotRun",
})  # fmt: skip
_NO_CLASS = re.compile(r'\bRuntimeClass "\S+" not found')
_NO_CDI = "unresolvable CDI devices"  # in the words of the runtimes' library
_CONTAINERS = {"init-container": ("init-container", "outsider"), "sharing-owner": ("sharing-owner", "owner")}
_IN_OWNER = ("second-container", "ephemeral-container")


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is tested, and how a pod asks for a GPU there. ``device_class``: for a claim instead of the resource."""

    node: str
    image: str
    nodes: str
    variable_image: str = ""
    resource: str = "nvidia.com/gpu"
    device_class: str = ""
    count: int = 1
    runtime_class: str = ""
    pod_security: str = ""


@dataclass
class Pods:
    """The pods of one run. ``tell``: hears what a pod waits for."""

    cluster: Cluster
    interruption: Interruption
    tell: Callable[[str], None]
    own: Secrets = field(default_factory=Secrets)
    user: str = "0"
    pause: float = 0.5  # seconds between two looks at a pod
    _ephemeral: bool = False

    @property
    def namespace(self) -> str:
        """The namespace of this run alone."""
        return f"autoclave-access-{self.own.nonce}"

    @property
    def port(self) -> int:
        """The port on which the owner is asked."""
        return PORTS[int(self.own.nonce, 16) % len(PORTS)]

    def begin(self) -> None:
        """Ask for the rights, make the namespace with its quota, and find out whether a plain pod may be root."""
        claim = CLAIM_RIGHTS if self.cluster.device_class else ()
        inside = places.can_i(self.namespace, (*RIGHTS_INSIDE, *claim))
        expect_rights(places.can_i("", RIGHTS) | inside, "docs/access.md")
        self.interruption.check()
        self._made("namespace")
        kubectl = places.kubectl(self.namespace)
        run([*kubectl, "create", "configmap", "probe", f"--from-file=probe.py={manifest_files.PROBE}"])
        if self.cluster.device_class:
            self._made("claim")
        ends = time.monotonic() + _SETTLED_WITHIN
        while (refused := self._plain()) and _NOT_YET.search(refused.why) and time.monotonic() < ends:
            self.interruption.wait(self.pause)
        if isinstance(refused, Refused):
            self.user = NOT_ROOT
            refused = self._plain()
        if refused is not None:
            raise ContainerFailed(f"a pod without a GPU and without rights is refused: {refused.why}")

    def _plain(self) -> NotMade | None:
        """Why the API server would refuse a pod without rights; it makes none."""
        return self._create("no-request", more=["--dry-run=server"])

    def start(self, role: str, numbers: str = "", ask: str = "") -> NotMade | None:
        """Create the pod of a role; a second container is in the owner's pod already."""
        self.interruption.check()
        if role == "second-container":
            return None
        if role == "ephemeral-container":
            return self._debug(ask)
        made = self._create(role, {"numbers": numbers, "owner": ask})
        if role == "leftover":  # it waits for the GPU by now: the old process has seconds to live
            run(places.force_delete(self.namespace, "owner"))
        return made

    def answer(self, role: str, within: float) -> Outcome:
        """Wait until the container runs or has ended, and read the first line of its log."""
        ends, last, waits = time.monotonic() + within, time.monotonic(), ""
        pod, container = self._place(role)
        while True:
            self.interruption.check()
            state = self._state(role)
            if not isinstance(state, str):
                return state
            if state in ("running", "terminated"):
                break
            waits = state
            if time.monotonic() > ends:
                return Unanswered(f"it did not start within {within:g} s: {waits}")
            if time.monotonic() > last + _SAYS_EVERY:
                self.tell(f"{role}: {waits}")
                last = time.monotonic()
            self.interruption.wait(self.pause)
        logs = Ear([*places.kubectl(self.namespace), "logs", pod, f"--container={container}", "--follow"])
        try:
            return answer_of(logs, self.own.nonce, ANSWERS_WITHIN, self.interruption)
        finally:
            logs.clear_away()

    def runs(self, role: str) -> bool:
        """Whether its container runs."""
        return self._state(role) == "running"

    def address(self, role: str) -> str:
        """The address of the pod."""
        address = self._pod(role).get("status", {}).get("podIP", "")
        return f"{address}:{self.port}" if re.fullmatch(r"[0-9.]+", address) else ""

    def leave_behind(self) -> tuple[str, Outcome | None]:
        """The owner's pod is deleted by force as soon as the next one waits for its GPU."""
        return self.address("owner"), None

    def end(self, role: str) -> None:
        """Delete the pod, and wait until it is gone."""
        pod, _ = self._place(role)
        if role not in _IN_OWNER:
            run(places.delete(self.namespace, pod))

    def end_sharing(self, role: str) -> None:
        """Delete the pod. What it has handed on may hold it up: a DRA driver may wait until nobody has the GPU open."""
        pod, _ = self._place(role)
        done = asked([*places.delete(self.namespace, pod), f"--timeout={_SHARED_WITHIN:g}s"])
        if done.returncode and "timed out waiting" not in done.stderr:
            raise ContainerFailed(f"the pod {pod} was not deleted: {done.stderr.strip()[-200:]}")

    def close(self) -> None:
        """Delete the namespace with all that is in it, and wait until it is gone."""
        run(["kubectl", "delete", "namespace", self.namespace, "--ignore-not-found"])

    def facts(self) -> dict[str, str]:
        """Versions, as far as the account may read them, and what the cluster admits to the namespace."""
        info = self._read("get", "node", self.cluster.node).get("status", {}).get("nodeInfo", {})
        labels = self._read("get", "namespace", self.namespace).get("metadata", {}).get("labels", {})
        server = self._read("version").get("serverVersion", {})
        level = {"pod-security": labels.get("pod-security.kubernetes.io/enforce", "that of the cluster")}
        words = {name: info.get(name, "") for name in ("kubeletVersion", "containerRuntimeVersion", "osImage")}
        known = {"node": self.cluster.node, "api-server": server.get("gitVersion", ""), **words, **level}
        known["user of plain pods"] = self.user
        return {name: plain(str(text)) for name, text in known.items() if text}

    def preview(self) -> str:
        """All that a run would create, as manifests."""
        names = ["namespace", *(["claim"] if self.cluster.device_class else []), "owner", *_ALONE]
        texts = [manifest_files.filled(name, self._values({"name": name})) for name in names]
        debug = " ".join(["# into the owner's pod:", *self._debugging("ADDRESS")])
        return "---\n".join(text for text in texts if text) + f"---\n{debug}\n"

    def _values(self, more: Mapping[str, str]) -> dict[str, str]:
        cluster, given = self.cluster, {"resources": f'{{limits: {{"{self.cluster.resource}": {self.cluster.count}}}}}'}
        quota = {"pods": 4, "count/configmaps": 4, f"requests.{cluster.resource}": 2 * cluster.count}
        if cluster.device_class:
            given = {"resources": "{claims: [{name: gpu}]}"}
            quota = {"pods": 4, "count/configmaps": 4, "count/resourceclaims.resource.k8s.io": 4}
        labels = {"app.kubernetes.io/name": "autoclave-access"}
        if cluster.pod_security:
            labels["pod-security.kubernetes.io/enforce"] = cluster.pod_security
        return {
            "namespace": self.namespace, "node": cluster.node, "image": cluster.image, "nodes": cluster.nodes,
            "variable_image": cluster.variable_image or cluster.image, "nonce": self.own.nonce,
            "secret": self.own.secret, "lives": str(LIVES), "port": str(self.port), "user": self.user,
            "nonroot": "false" if self.user == "0" else "true", "runtime": cluster.runtime_class or "null",
            "claims": "[{name: gpu, resourceClaimTemplateName: gpu}]" if cluster.device_class else "[]",
            "device_class": cluster.device_class, "count": str(cluster.count), "labels": json.dumps(labels),
            "quota": json.dumps({name: str(most) for name, most in quota.items()}), "numbers": "", "owner": "",
            **given, **more,
        }  # fmt: skip

    def _create(
        self, role: str, values: Mapping[str, str] | None = None, *, more: list[str] | None = None
    ) -> NotMade | None:
        name = re.sub(r"-\d+$", "", role)  # the second pod of a way has the same manifest
        text = manifest_files.filled(name, self._values({"name": role, **(values or {})}))
        done = asked(["kubectl", "create", "--filename=-", *(more or [])], text)
        return None if done.returncode == 0 else _refusal(done.stderr)

    def _made(self, name: str) -> None:
        if refused := self._create(name):
            raise ContainerFailed(f"cannot create the {name}: {refused.why}")

    def _debugging(self, ask: str) -> list[str]:
        probe = ["try", f"--nonce={self.own.nonce}", f"--secret={self.own.secret}", f"--nodes={self.cluster.nodes}"]
        flags = ["--profile=baseline", f"--custom={manifest_files.HERE / 'ephemeral-container.yaml'}", "--quiet"]
        command = ["debug", "owner", f"--image={self.cluster.image}", "--container=ephemeral-container", *flags]
        return [*places.kubectl(self.namespace), *command, "--", "python3", "/probe/probe.py", *probe, f"--ask={ask}"]

    def _debug(self, ask: str) -> NotMade | None:
        done = asked(self._debugging(ask))
        return None if done.returncode == 0 else _refusal(done.stderr)

    def _place(self, role: str) -> tuple[str, str]:
        """The names of the pod and of the container."""
        if role in _IN_OWNER:
            return "owner", role
        holds = role.startswith(("leftover", "kept-open"))
        return _CONTAINERS.get(role, (role, "owner" if role == "owner" else "successor" if holds else "outsider"))

    def _pod(self, role: str) -> dict[str, Any]:
        return self._read("get", "pod", self._place(role)[0])

    def _read(self, *words: str) -> dict[str, Any]:
        """What kubectl reads; nothing if it may not."""
        done = asked([*places.kubectl(self.namespace), *words, "--output=json"])
        try:
            value = json.loads(done.stdout)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def _state(self, role: str) -> str | Unanswered | Unsuited:
        """What it waits for, or "running", or "terminated"; or else why it never runs."""
        status = self._pod(role).get("status", {})
        kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
        states = {each["name"]: each.get("state", {}) for kind in kinds for each in status.get(kind) or ()}
        state = states.get(self._place(role)[1], {})
        word = next(iter(state), "waiting")
        about = state.get(word, {})
        why = plain(": ".join(filter(None, (about.get("reason", ""), about.get("message", "")))))
        if about.get("reason") in _HOPELESS:
            return Unsuited(f"the runtime has no such CDI device: {why}") if _NO_CDI in why else Unanswered(why)
        if word in ("running", "terminated"):
            return word
        whole = plain(": ".join(filter(None, (status.get("reason", ""), status.get("message", "")))))
        if status.get("phase") == "Failed":
            return Unanswered(whole or "its pod failed")
        unmet = [each.get("message", "") for each in status.get("conditions") or () if each.get("status") == "False"]
        return why or whole or plain(next(filter(None, unmet), "it waits for its node"))


_ALONE = (
    "no-request", "variable", "image-variable", "cdi-annotation", "runtime-class", "host-dev", "own-node", "privileged",
    "privileged-own-node", "host-pid", "init-container", "leftover", "sharing-owner", "handed-on", "kept-open",
)  # fmt: skip


def _refusal(words: str) -> NotMade:
    """Why the API server has not created a pod. A quota says nothing about a way."""
    why = plain(re.sub(r"^Error from server( \(\w+\))?: ", "", words.strip())) or "kubectl gave no reason"
    if _NO_CLASS.search(words):
        return Unsuited(why)
    return Refused(why) if _ADMISSION.search(words) and not _NO_REFUSAL.search(words) else Unanswered(why)
