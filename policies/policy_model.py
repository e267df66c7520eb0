"""The fields of a policy (modes, paths, budgets, fence, clear, proof): defaults, bounds and checks; rules of a set.

They are values, checked when they are built. Every default is the one in ``default.yaml``. The model has no field that
the code does not read. Operators read the text under a field: in their editor, through ``schema.json``, and in
``docs/policy-fields.md``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable
from functools import cache
from itertools import product
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from ground.documents.faults import ImpossibleError
from ground.documents.units import format_duration
from policies.base_model import Duration, Model
from policies.hardware import QuarantinePolicy, Reset, SettingsPolicy, WhenReset
from policies.values import FenceMode, ScrubPath, Word

MOST_RULES = 256  # every rule is compared with every earlier one when a file is read
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
PATH = re.compile(r"(/[^/:\s]+)+")
BYSTANDER = re.compile(f"({NAMESPACE.pattern}:)?{PATH.pattern}")
_LETTER = r"[A-Za-z0-9:_.@\\-]"  # of the name of a unit, or of a control group
UNIT = re.compile(
    # A slice stands for all that runs in it, so it has a whole name. No pattern stands for all units.
    rf"({_LETTER}+[.](service|slice|scope)|{_LETTER}{{3,}}[A-Za-z0-9:_.@*\\-]*[.](service|scope)|(/{_LETTER}+)+)"
)
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
UUID = re.compile(r"[A-Z]+-[0-9A-Za-z][0-9A-Za-z/-]*")

FOR_THE_SCRUB = 0.5  # seconds of the budget of Allocate that are left when the previous owner has ended

# The seconds in which each step of a scrub must be done; the policy multiplies them by ``timeouts``.
STEP_SECONDS = {
    "evict": 15.0,  # end processes that are still on the device, or wait for them
    "reset": 60.0,  # until the device is back on the bus and answers
    "clear": 60.0,  # takes about a second on a data-centre device, longer on an overloaded node
    "verify": 60.0,
    "scratch": 30.0,  # takes moments on a healthy device
    "selftest": 90.0,  # the time of the tests, and clearing up after them
    "settings": 10.0,
    "health": 10.0,  # a driver that needs more than this usually hangs
}


class Mode(Word):
    """Whether a device without a proof is refused."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


class Eviction(Word):
    """What happens to a process that is still on a device."""

    WAIT = "wait"
    TERMINATE = "terminate"


class Starts(Word):
    """What a container start means after the first one of a pod."""

    PER_POD = "per-pod"
    PER_CONTAINER = "per-container"
    PER_CONTAINER_CACHED = "per-container-cached"


class Receipts(Word):
    """Who gets the signed receipt of a device."""

    KEEP = "keep"
    MOUNT = "mount"


class Passes(Word):
    """What is written over the memory."""

    ZERO = "zero"
    RANDOM = "random"
    RANDOM_ZERO = "random+zero"
    RANDOM_ONES_ZERO = "random+ones+zero"

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns by name, in the order in which they are written and read back."""
        return tuple(self.value.split("+"))


def check_gpu(entry: object) -> object:
    """An index, or the beginning of a UUID. Rejects ``"0"`` in quotes, and ``GPU-``, which matches every device."""
    match entry:
        case int() if entry >= 0 and not isinstance(entry, bool):
            return entry
        case str() if UUID.fullmatch(entry):
            return entry
    raise ValueError("an index such as 0, or a UUID or the beginning of one, such as GPU-8f2c")


def _plain(pattern: re.Pattern[str], expected: str) -> Callable[[str], str]:
    """A check for text of this form. A path is named as the kernel shows it, so without "." and ".."."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text) or {".", ".."} & set(text.split("/")):
            raise ValueError(expected)
        return text

    return check


# A name needs no quotes in a metric label, a file name or a log line.
check_name = _plain(NAME, "a name of lower-case letters, digits and dashes, such as h100-nodes")
check_namespace = _plain(NAMESPACE, "a namespace of Kubernetes, such as gpu-operator")
check_unit = _plain(
    UNIT,
    "a unit of systemd, such as telegraf.service or user.slice; a service or scope with * for any letters, such as "
    "crio-conmon-*.scope, where the first three letters are given; or the path of a control group, such as "
    "/podruntime/runtime",
)
_check_bystander = _plain(
    BYSTANDER, "[NAMESPACE:]PATH with an absolute path, such as gpu-operator:/usr/bin/dcgm-exporter"
)


def _word(pattern: re.Pattern[str]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern.pattern}$"})


Bystander = Annotated[str, AfterValidator(_check_bystander), _word(BYSTANDER)]
Unit = Annotated[str, AfterValidator(check_unit), _word(UNIT)]
Namespace = Annotated[str, AfterValidator(check_namespace), _word(NAMESPACE)]
Name = Annotated[str, AfterValidator(check_name), _word(NAME)]
Glob = Annotated[str, Field(min_length=1)]
Gpu = Annotated[
    int | str,
    BeforeValidator(check_gpu),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": f"^{UUID.pattern}$"}]}),
]


class Budgets(Model):
    """How long a caller waits before it is refused."""

    allocate: Annotated[Duration, Field(gt=0, le=4)] = 4.0
    """How long Allocate may wait for a clean device; at most 4s, so that with a refusal it takes 5s at most."""

    @property
    def owner_wait(self) -> float:
        """How much of it may be spent waiting for the previous owner to end: all but the time for a scrub.

        The next pod often comes milliseconds before that end was noticed, and after a force delete the kubelet gives
        the old container 2 s more.
        """
        return max(0.0, self.allocate - FOR_THE_SCRUB)


class Paths(Model):
    """Which path is taken in which situation."""

    first_look: ScrubPath = ScrubPath.SLOW
    """The path for an unknown device: seen for the first time, after a reboot, after a driver reload."""

    new_tenant: ScrubPath = ScrubPath.FAST
    """The path between two tenants: fast, slow (with a self-test) or reset (with a self-test and a device reset)."""


_DAEMONS = tuple(
    f"/usr/bin/{name}" for name in ("nvidia-persistenced", "nv-fabricmanager", "nv-hostengine", "nvidia-imex")
)
_TOOLKIT = tuple(f"nvidia-{name}" for name in ("container-cli", "container-runtime", "ctk"))
_TOOLS = (
    *(f"/usr/bin/{name}" for name in ("nvidia-smi", "nvidia-modprobe", *_TOOLKIT, "nvidia-container-cli.real")),
    *(f"/usr/local/nvidia/toolkit/{name}.real" for name in _TOOLKIT),  # where the operator installs the toolkit
)
# NVIDIA's programs in pods. A new one, or one of your own, is named by its path in ``evict.bystanders``.
OPERATOR_PROGRAMS = (
    *_DAEMONS,
    "/usr/bin/dcgm-exporter",
    "/usr/bin/nvidia-device-plugin",
    "/usr/bin/gpu-feature-discovery",
    "/usr/bin/nvidia-mig-manager",
    "/usr/bin/nvidia-validator",
    "/usr/bin/gpu-kubelet-plugin",
    "/usr/bin/compute-domain-kubelet-plugin",
    "/usr/bin/nvidia-gpu-device-plugin",  # GKE's, as the next one
    "/usr/local/nvidia/bin/nvidia-persistenced",
)
_NAMESPACES = (
    "gpu-operator",
    "gpu-operator-resources",
    "nvidia-gpu-operator",
    "dra-driver-nvidia-gpu",
    "nvidia-dra-driver-gpu",
    "nvidia",
    "nvidia-device-plugin",
    "gpu-feature-discovery",
    "kube-system",
)


class Evict(Model):
    """What happens to processes on a device without a live container. A process of a live container is never ended."""

    leftovers: Eviction = Eviction.TERMINATE
    """What happens to processes of the last owner whose container is gone."""

    foreign: Eviction = Eviction.WAIT
    """What happens to processes that belong to no owner, such as a host daemon or a shell."""

    grace: Annotated[Duration, Field(ge=0)] = 2.0
    """The time between TERM and KILL."""

    bystanders: tuple[Bystander, ...] = (*_DAEMONS, *_TOOLS)
    """Programs, as [NAMESPACE:]PATH, that do not count as holders; no device is reset while one has it open."""

    operator_namespaces: tuple[Namespace, ...] = _NAMESPACES
    """Namespaces in which tenants cannot create pods, and NVIDIA's programs are bystanders."""

    def all_bystanders(self, namespaces: Collection[str] = ()) -> tuple[str, ...]:
        """Every bystander as [NAMESPACE:]PATH. ``namespaces``: operator namespaces beside those of the policy."""
        pods = product(dict.fromkeys((*self.operator_namespaces, *namespaces)), OPERATOR_PROGRAMS)
        return (*self.bystanders, *map(":".join, pods))


_OF_NVIDIA = (
    "nvidia-persistenced", "nvidia-fabricmanager", "nvidia-imex", "nvidia-dcgm", "dcgm", "nvidia-mps-control-daemon",
    "nvidia-k8s-device-plugin",
)  # fmt: skip
_RUNTIMES = (
    "containerd", "crio", "docker", "k3s", "k3s-agent", "rke2-server", "rke2-agent", "k0scontroller", "k0sworker",
    "snap.microk8s.daemon-containerd",
)  # fmt: skip
RUNTIME_UNITS = frozenset(f"{name}.service" for name in (*_RUNTIMES, "kubelet"))
"""The units that run the containers of a node."""

KNOWN_UNITS = (
    *(f"{name}.service" for name in (*_OF_NVIDIA, *_RUNTIMES)),
    "crio-conmon-*.scope",
    "/podruntime/runtime",
    "/system/extensions",
)


class FenceExempt(Model):
    """Who may open a device at any time, and is counted, beside the pods of ``evict.operator_namespaces``."""

    units: tuple[Unit, ...] = ()
    """More units of systemd on the host than those that are always exempt, such as telegraf.service, or paths."""

    @property
    def all_units(self) -> tuple[str, ...]:
        """With those that are always exempt: NVIDIA's daemons, and container runtimes, which run NVIDIA's hooks."""
        return (*KNOWN_UNITS, *self.units)


class FencePolicy(Model):
    """Who may open a device while it belongs to nobody, or to somebody else. The kernel keeps watch over it."""

    mode: FenceMode = FenceMode.HOLD
    """Who is kept off: pods (hold), programs of the host too (refuse), nobody (watch). With off nobody is counted."""

    exempt: FenceExempt = FenceExempt()

    lease: Annotated[Duration, Field(ge=60, le=86400)] = 600.0
    """How long others are still refused after the service was last seen alive, such as when it is removed; 1m to 1d."""


class Clear(Model):
    """What is written over the memory, and how much of it must be covered."""

    passes: Passes = Passes.RANDOM_ZERO
    """What is written and read back, one after the other: a keyed pattern, ones (every bit set), zeros."""

    min_coverage: Annotated[float, Field(gt=0, le=1)] = 0.995
    """The share of the allocatable memory that must be overwritten and read back, from 0 to 1."""


class Selftest(Model):
    """How thoroughly a device is tested on the paths slow and reset."""

    time: Annotated[Duration, Field(gt=0)] = 60.0
    """How long memory and arithmetic are tested; the receipt names the tests that were completed in that time."""


class Proof(Model):
    """How long a proof is valid."""

    max_age: Annotated[Duration, Field(gt=0)] = 86400.0
    """How old a proof may become before an idle device is scrubbed again."""


class Policy(Model):
    """The policy of one device."""

    mode: Mode = Mode.ENFORCE
    """Whether a device that is not proven clean is refused (enforce), or handed out and recorded (observe)."""

    model: Starts = Starts.PER_CONTAINER_CACHED
    """What happens before later container starts of a pod: nothing, a scrub, or a check."""

    receipts: Receipts = Receipts.KEEP
    """Whether the signed receipt is kept on the node only, or also mounted read-only into the containers of the pod."""

    serial_in_receipts: bool = False
    """Whether a signed receipt names the board by its serial number, for an inventory of hardware."""

    budgets: Budgets = Budgets()
    paths: Paths = Paths()

    timeouts: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    """The factor for the deadlines of all steps. A step that misses its deadline is killed and fails."""

    evict: Evict = Evict()
    fence: FencePolicy = FencePolicy()
    reset: Reset = Reset()
    settings: SettingsPolicy = SettingsPolicy()
    clear: Clear = Clear()
    selftest: Selftest = Selftest()
    proof: Proof = Proof()
    quarantine: QuarantinePolicy = QuarantinePolicy()

    def deadline(self, step: str) -> float:
        """The seconds in which this step must be done."""
        return STEP_SECONDS[step] * self.timeouts

    @model_validator(mode="after")
    def grace_fits(self) -> Self:
        """TERM, grace and KILL all happen within the evict step."""
        why = "the grace to be shorter: otherwise the step ends before it sends KILL"
        return self._fits("evict.grace", self.evict.grace, "evict", why)

    @model_validator(mode="after")
    def selftest_fits(self) -> Self:
        """The tests and their cleanup must fit into the time of the selftest step."""
        why = "the time to be shorter: otherwise the step ends before its cleanup"
        return self._fits("selftest.time", self.selftest.time, "selftest", why)

    def _fits(self, name: str, wait: float, step: str, expected: str) -> Self:
        """Refuse a wait that is not shorter than the deadline of its step."""
        if wait >= self.deadline(step):
            deadline = f"timeouts {self.timeouts:g}, where the step {step} ends after"
            found = f"{name} {format_duration(wait)} with {deadline} {format_duration(self.deadline(step))}"
            raise ImpossibleError(found, expected, name, "timeouts")
        return self

    @model_validator(mode="after")
    def resets_are_allowed(self) -> Self:
        """A policy that forbids resets cannot demand one of every device."""
        for name in ("first_look", "new_tenant"):
            if self.reset.when is WhenReset.NEVER and getattr(self.paths, name) is ScrubPath.RESET:
                raise ImpossibleError(
                    f"reset.when never with paths.{name} reset", "a path without a reset", f"paths.{name}", "reset.when"
                )
        return self

    @property
    def fence_mode(self) -> FenceMode:
        """What the fence does. With ``mode: observe`` it holds nobody, and who would be held is named."""
        holds = self.mode is not Mode.OBSERVE or self.fence.mode is FenceMode.OFF
        return self.fence.mode if holds else FenceMode.WATCH

    def exempt_names(self, units: Iterable[str] = (), namespaces: Iterable[str] = ()) -> str:
        """Who may open a device at any time, one in a line, with those of the service's flags. Empty: nobody may."""
        names = [f"unit {name}\n" for name in (*self.fence.exempt.all_units, *units)]
        names += [f"namespace {name}\n" for name in (*self.evict.operator_namespaces, *namespaces)]
        return "".join(sorted(set(names)))

    @property
    def proof_digest(self) -> str:
        """The digest of ``proof_settings``. Another digest makes old proofs invalid."""
        return _digest(self.clear, self.paths.new_tenant)

    @property
    def proof_settings(self) -> str:
        """The fields that decide what a proof is worth, as JSON. A more thorough path gives a better proof."""
        return _settings(self.clear, self.paths.new_tenant)


def _settings(clear: Clear, new_tenant: ScrubPath) -> str:
    # Every scrub overwrites the memory on the chip. Receipts say so since a policy could choose it.
    worth = {**clear.model_dump(mode="json"), "on_chip": "every-path"}
    return json.dumps({"clear": worth, "paths": {"new_tenant": new_tenant.value}})


@cache
def _digest(clear: Clear, new_tenant: ScrubPath) -> str:
    """Cached, as every grant asks for it."""
    return digest(_settings(clear, new_tenant))


def digest(text: str) -> str:
    """What a receipt says of the settings that were in force, or of who was exempt."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def concessions(policy: Policy) -> tuple[str, ...]:
    """One sentence for each promise that this policy gives up, for operators to read before they use the policy."""
    given_up = {
        "mode observe: devices are handed out without a proof; the ledger records each such grant": (
            policy.mode is Mode.OBSERVE
        ),
        "fence.mode off: any process opens a device that belongs to another pod, and a short use is not noticed": (
            policy.fence.mode is FenceMode.OFF
        ),
        "fence.mode watch: a process can open a device that belongs to another pod; this is counted, but not refused": (
            policy.fence.mode is FenceMode.WATCH
        ),
        "paths.first_look fast: an unknown device is not tested, unless a scrub fails": (
            policy.paths.first_look is ScrubPath.FAST
        ),
        "clear.passes random: a tenant may find the pattern of the scrub in memory instead of zeros, and a scrub may"
        " not tell that pattern from what the last tenant left": policy.clear.passes is Passes.RANDOM,
    }
    return tuple(sentence for sentence, is_given_up in given_up.items() if is_given_up)


class Match(Model):
    """Which devices a rule matches. All given conditions must hold; an empty match holds for every device."""

    model: Glob | None = None
    """A shell pattern for the model name, such as "NVIDIA H100*". Case matters."""

    mig: bool | None = None
    """Whether the device is a MIG slice."""

    resource: Glob | None = None
    """A shell pattern for the resource name, such as nvidia.com/gpu."""

    gpu: Annotated[tuple[Gpu, ...], Field(min_length=1)] | None = None
    """Devices by index, UUID or the beginning of a UUID. A reboot may change indices, but not UUIDs."""


class Rule(Model):
    """A policy for some devices."""

    name: Name
    """The name of the rule in logs and receipts."""

    match: Match
    """The devices that the rule matches."""

    policy: Policy
    """The differences from defaults for these devices."""


class PolicySet(Model):
    """A policy file: the first rule that matches applies, otherwise ``defaults``."""

    name: Name
    """The name of the policy in logs and receipts."""

    description: str = ""
    """One sentence that says what the policy is for."""

    defaults: Policy = Policy()
    """The policy of every device that no rule matches, and the base of every rule."""

    rules: Annotated[tuple[Rule, ...], Field(max_length=MOST_RULES)] = ()
    """Exceptions for some devices. The first rule that matches applies."""

    @property
    def policies(self) -> tuple[Policy, ...]:
        """All that a device may have."""
        return self.defaults, *(rule.policy for rule in self.rules)

    def fenced(self, mode: FenceMode) -> PolicySet:
        """The same with this ``fence.mode`` in each policy."""
        rules = tuple(rule.model_copy(update={"policy": _fenced(rule.policy, mode)}) for rule in self.rules)
        return self.model_copy(update={"defaults": _fenced(self.defaults, mode), "rules": rules})


def _fenced(policy: Policy, mode: FenceMode) -> Policy:
    return policy.model_copy(update={"fence": policy.fence.model_copy(update={"mode": mode})})
