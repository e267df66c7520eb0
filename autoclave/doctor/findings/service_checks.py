"""Checks of what the service says of its sockets, ledger, receipts, policy, fence, and each GPU's coverage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from autoclave.doctor.facts import service_facts
from autoclave.doctor.facts.service_facts import on_kubernetes
from autoclave.doctor.finding import OTHER_USER, Finding, as_root, broken, check, check_of_service, ok, warning
from autoclave.doctor.node_facts import CheckFault, Node
from ground import calendar_time, errors, process_names
from ground.errors import AutoclaveError, Reason, Unreachable
from ground.quantities import quantity
from policies import load, policy_model
from policies.policy_model import Clear
from policies.values import FenceMode
from scrub_api import views
from scrub_api.device_messages import state_words
from scrubber.core.measured import forgiven_memory
from scrubber.core.model import NO_CONTAINER, NOWHERE, State
from scrubber.fence.live_openers import KEPT_FOR

KEEPS_OFF = (FenceMode.HOLD.value, FenceMode.REFUSE.value, views.OPEN_TO_ALL)  # what such a fence does now
LONG = 60.0  # seconds: by then the scrub of an unknown or dirty device has begun, unless something blocks it
ALLOCATE_WAITS = "So a pod waits for its GPU in Allocate there, and fails if that takes too long"
ALONE = "`autoclave fence status` says whether the kernel still keeps others off the GPUs"
DEFAULT = Clear()  # a receipt below its coverage means that the policy demanded less


@check("service")
def service(node: Node) -> Iterator[Finding]:
    """The scrub service answers."""
    match service_facts.answer(node):
        case views.Status(service=running):
            about = f"version {running.version}, backend {running.backend}, policy {running.policy}"
            yield ok(f"the scrub service answers: {about}")
        case AutoclaveError(reason=Reason.LEDGER_UNAVAILABLE):
            yield ok("the scrub service answers, but cannot use its ledger")
        case Unreachable() if (last := service_facts.last_error(node)) is not None:
            at = calendar_time.utc(last.at).astimezone().isoformat(sep=" ", timespec="seconds")
            remedy = last.remedy or f"correct that, and {errors.start(on_kubernetes=on_kubernetes(node))}"
            yield broken(f"the scrub service does not run. It ended at {at}: {last.text}. {ALONE}", remedy)
        case Unreachable(message=message, remedies=remedies):
            remedy = errors.joined(*remedies) or errors.start(on_kubernetes=on_kubernetes(node))
            yield broken(f"{message}. {ALONE}", remedy)
        case AutoclaveError() as error:
            text = f"the scrub service gives no status: {error}"
            yield broken(text, f"read its log; {errors.restart(on_kubernetes=on_kubernetes(node))}")


@check("scrubber-socket", service_facts.answers)
def scrubber_socket(node: Node) -> Iterator[Finding]:
    """The plugin's socket file may be gone while the operators' socket still answers."""
    socket = service_facts.scrubber_socket(node)
    if socket.fault is not None:
        text = f"the plugin cannot ask the scrub service at {socket.path}: {socket.fault.text}"
        yield broken(text, errors.restart(on_kubernetes=on_kubernetes(node)))
    else:
        yield ok(f"the scrub service accepts connections of the plugin at {socket.path}")


@check("run-dir")
def run_dir(node: Node) -> Iterator[Finding]:
    """No other user may enter the run directory."""
    directory = service_facts.run_dir(node)
    if directory.fault is not None:
        remedy = (
            f"name the --run-dir of the service, which makes it, or {errors.start(on_kubernetes=on_kubernetes(node))}"
        )
        text = f"cannot use the run directory {directory.path}: {directory.fault.text}"
        yield broken(text, as_root(directory.fault, remedy))
    elif not directory.ours:
        yield broken(f"the run directory {directory.path} belongs to another user", OTHER_USER)
    elif not directory.private:
        text = f"other users may write to the run directory {directory.path}, and could replace the socket by their own"
        yield broken(text, f"find out what changed its mode; `chmod 0700 {directory.path}`")
    else:
        yield ok(f"no other user may enter the run directory {directory.path}")


@check("ledger")
def ledger(node: Node) -> Iterator[Finding]:
    """The last write to the ledger succeeded."""
    match service_facts.answer(node):
        case views.Status(service=running) if running.ledger_fault:
            text = f"the ledger cannot be written, so nothing is handed out: {running.ledger_fault}"
            remedy = errors.joined(*running.ledger_remedies) or f"make room in {running.state_dir}, or repair its disk"
            yield broken(text, remedy)
        case views.Status(service=running):
            rows = quantity(running.ledger_rows, "row")
            yield ok(f"the last write to the ledger in {running.state_dir} succeeded: {rows}")
        case AutoclaveError(reason=Reason.LEDGER_UNAVAILABLE, message=message, remedies=remedies):
            what = remedies or ("repair what the message names",)
            remedy = errors.joined(*what, "the service then tries again by itself")
            yield broken(f"the service cannot use its ledger, so nothing is handed out: {message}", remedy)


@check_of_service("ledger-set-aside")
def set_aside(_node: Node, status: views.Status) -> Iterator[Finding]:
    """No damaged ledger was set aside."""
    service = status.service
    for name in service.set_aside:
        remedy = (
            "`autoclave ledger export` it, quarantine the same devices again, move the file away, restart the service"
        )
        text = (
            f"a damaged ledger was set aside as {name} in {service.state_dir}; the quarantines in it are not in force"
        )
        yield warning(text, remedy)
    if not service.set_aside:
        yield ok("no damaged ledger was set aside")


@check_of_service("receipts")
def receipts(node: Node, status: views.Status) -> Iterator[Finding]:
    """Others can check the receipts. The promise does not need it: a GPU is as clean without a signature."""
    key = service_facts.receipt_key(node, status.service.state_dir)
    if key is None:
        text = f"receipts are not signed: {service_facts.cupy(node).path} has no package `cryptography`"
        remedy = "install the extra `receipts` (in a checkout: pip install '.[receipts]'), or use the image; restart"
        yield warning(text, remedy)
    elif isinstance(key, CheckFault):
        yield warning(f"receipts are not signed, or their key is not safe: {key.text}", key.remedy or OTHER_USER)
    else:
        yield ok(f"receipts are signed by the key {key}")


@check_of_service("policy")
def policy(_node: Node, status: views.Status) -> Iterator[Finding]:
    """The newest policy is in force."""
    service = status.service
    if service.policy_fault:
        # Broken: the service would not start with the policy as it is written.
        text = f"the newest policy is not in force, the old one is: {'; '.join(service.policy_fault.splitlines())}"
        remedy = (
            "correct the file until `autoclave policy check FILE` finds no fault; the service then loads it by itself"
        )
        yield broken(text, remedy)
    else:
        yield ok(f"the newest policy is in force: {service.policy}")


@check_of_service("concession")
def concessions(_node: Node, status: views.Status) -> Iterator[Finding]:
    """The policy keeps all promises for the devices of this node."""
    service = status.service
    shipped = load.load(service.policy_source).policies if service.policy_source in load.shipped() else ()
    for sentence in service.concessions:
        remedy = "if this is not intended, "
        if any(sentence in policy_model.concessions(policy) for policy in shipped):
            remedy += "choose another policy: --policy of the service, or policy.shipped or policy.inline of the chart"
        elif shipped:
            remedy += "start the service without --fence (policy.fence of the chart)"
        else:
            remedy += f"remove it from the policy {service.policy_source or service.policy}"
            if sentence.startswith("fence.mode"):
                remedy += ", or --fence of the service (policy.fence of the chart), if that chose it"
        yield warning(f"the policy gives up a promise: {sentence}", remedy)
    if not service.concessions:
        yield ok(f"policy {service.policy} keeps all promises for the devices of this node")


@check_of_service("bystanders")
def unlisted(_node: Node, status: views.Status) -> Iterator[Finding]:
    """Programs of NVIDIA in namespaces that the policy does not name: no scrub passes while one has the GPU open."""
    for bystander in status.service.unlisted:
        text = (
            f"{bystander.program} opened a GPU, or asked to, in the namespace {bystander.namespace}, which the policy "
            "does not name"
        )
        yield warning(text, bystander.remedy)
    if not status.service.unlisted:
        yield ok("the policy names the namespace of each program of NVIDIA that opened a GPU, or asked to")


MOST = 3  # programs that a finding names
KEPT = (
    "each use of a clean GPU costs a scrub, and nobody else gets a GPU while this program keeps it open: "
    "`autoclave fence plan` says what to do while it runs, such as an entry in evict.bystanders"
)


@check_of_service("fence")
def fence(node: Node, status: views.Status) -> Iterator[Finding]:
    """The kernel keeps watch over who opens a GPU, and who would be refused is known."""
    service, watched_for = status.service, service_facts.now(node) - KEPT_FOR
    if service.fence_lacks:
        text = f"{service.fence_lacks}. Instead, the service searches for users of a GPU, and may miss a short use. "
        text += ALLOCATE_WAITS
        remedy = "remove this cause and restart the service, or choose `fence: {mode: off}` in the policy"
        yield warning(text, remedy)
        return
    guarded = [device for device in status.devices if device.fence]
    if guarded and service.fence_below:
        refuses = any(device.fence in KEEPS_OFF for device in guarded)
        does = "counts and refuses" if refuses else "counts"
        text = f"the fence {does} processes below {service.fence_below} only, and nobody else"
        yield warning(text, "start the service without --cgroup-root, which is for trials")
    programs = [*_openers(guarded)]
    # Nothing is to be done about who has opened a GPU and may: the mode `refuse` alone refuses bystanders of the host.
    may = [of for of in programs if of[0].ignored and (of[0].exempt or not (of[0].in_pod or _refused(*of)))]
    let_in = [of for of in programs if of not in may and _hold_lets_in(*of, service.policy_since)]
    unsettled = [of for of in programs if of not in (*may, *let_in) and not of[0].is_settled(service.policy_since)]
    tenants = frozenset(device.pod.partition("/")[0] for device in status.devices if not device.was_opened_idle) - {""}
    for opener, asked_for in unsettled:
        yield _opener(opener, asked_for, tenants, service.policy_since)
    seen = {(opener.place, opener.command) for opener, _ in unsettled}
    for device in guarded:
        for opener in device.exempt_holders:
            if (opener.place, opener.command) not in seen:
                yield warning(f"{opener} has GPU {device.name} ({device.device}) open, and the policy exempts it", KEPT)
    if may:
        names = [f"{it}{'' if it.exempt else ' (`refuse` would refuse it)'}" for it, _ in may]
        yield ok(f"these bystanders opened GPUs, and may keep them open: {_listed(names)}")
    if let_in:
        text = f"the mode hold lets these programs of the host open GPUs: {_listed([str(it) for it, _ in let_in])}. "
        yield ok(f"{text}Each use of a clean GPU costs a scrub, unless evict.bystanders names the program")
    open_to_all = [device.name for device in guarded if device.fence == views.OPEN_TO_ALL]
    if open_to_all:
        text = f"every process may open GPU {', '.join(open_to_all)} for now: its owner named no control group"
        yield warning(text, "acquire it with `--cgroup`, so that the fence is open to the owner alone")
    if guarded and service.pods_share_groups:
        text = "the kernel can only watch who opens a GPU, whatever the policy says, because on this node pods are in "
        text += f"control groups of version 1. {ALLOCATE_WAITS}"
        yield warning(text, "boot the node with version 2 of control groups only; until then, no pod is kept off a GPU")
    elif not guarded:
        yield ok("the kernel does not keep watch over who opens a GPU: the policy does not ask for it")
    elif not (open_to_all or service.fence_below or unsettled or any(it.exempt_holders for it in guarded)):
        modes = ", ".join(sorted({device.fence for device in guarded}))
        text = f"the kernel keeps watch over {quantity(len(guarded), 'GPU')} ({modes})"
        began = service.policy_since if programs else service.started
        since, other = _minute(max(began, watched_for)), "other " if may or let_in else ""
        yield ok(f"{text}; no {other}program asked for one that was not given to it since {since}")


def _openers(guarded: Iterable[views.DeviceStatus]) -> Iterator[tuple[views.OpenerView, list[views.DeviceStatus]]]:
    """Each program that asked for GPUs which were not given to it, once, with these GPUs."""
    found = defaultdict[object, list[tuple[views.OpenerView, views.DeviceStatus]]](list)
    for device in guarded:
        for opener in device.openers:
            command = opener.command if opener.place in NOWHERE else ""  # elsewhere it is that of the last process
            same = opener.place, opener.pod, command, opener.exempt, opener.ignored, bool(opener.refused)
            found[same].append((opener, device))
    for pairs in found.values():
        openers = [opener for opener, _ in pairs]
        newest = max(openers, key=lambda opener: opener.last)
        times, refused = sum(opener.times for opener in openers), sum(opener.refused for opener in openers)
        opened = max(opener.opened for opener in openers)
        yield replace(newest, times=times, refused=refused, opened=opened), [device for _, device in pairs]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST} more (`autoclave fence plan` shows all)" if len(names) > MOST else ""
    return f"{', '.join(names[:MOST])}{more}"


def _minute(wall: float) -> str:
    return calendar_time.utc(wall).astimezone().isoformat(" ", "minutes")


def _refused(opener: views.OpenerView, devices: Iterable[views.DeviceStatus]) -> bool:
    """Whether the fence refuses it, as it stands now."""
    refusing = {FenceMode.HOLD.value, FenceMode.REFUSE.value} if opener.in_pod else {FenceMode.REFUSE.value}
    return not opener.exempt and any(device.fence in refusing for device in devices)


def _let_in(opener: views.OpenerView, devices: Iterable[views.DeviceStatus]) -> bool:
    """Whether the fence lets it in, as it stands now. Under `hold`, that takes a place which is known to be no pod."""
    hold = {FenceMode.HOLD.value} if opener.place and not opener.in_pod else set[str]()
    return all(device.fence in {FenceMode.WATCH.value, views.WATCHES_ONLY, *hold} for device in devices)


def _hold_lets_in(opener: views.OpenerView, devices: Iterable[views.DeviceStatus], policy_since: float) -> bool:
    """Whether it is a program of the host, and its GPUs are kept from pods alone: the policy wants it so.

    Nobody knows the place of some that have ended. Under the policy in force, the fence lets no such pod in.
    """
    is_of_host = opener.place.startswith("/") or opener.place == NO_CONTAINER
    is_of_host |= not opener.place and opener.last >= policy_since
    hold = FenceMode.HOLD.value
    return is_of_host and not (opener.in_pod or opener.exempt) and all(device.fence == hold for device in devices)


def _opener(
    opener: views.OpenerView, devices: list[views.DeviceStatus], tenants: Collection[str], policy_since: float
) -> Finding:
    """A program that asked for GPUs which were not given to it. ``tenants``: namespaces of pods that were."""
    who, them = str(opener), "it"
    if opener.refused_in_part:
        command = f"called {process_names.quoted(opener.command)} ({opener.where})"
        who, them = f"processes {command if opener.place in NOWHERE else f'of {opener.where}'}", "them"
    if len(devices) == 1:
        asked = f"{who} asked for GPU {devices[0].name} ({devices[0].device}), which was not given to {them},"
    else:
        names = ", ".join(device.name for device in devices)
        asked = f"{who} asked for GPU {names}, which were not given to {them},"
    times = f"at least {quantity(opener.times, 'open attempt')}, the last one at {_minute(opener.last)}"
    if opener.exempt:
        text = f"{asked} and may open it: the policy exempts its unit or namespace; {times}"
        return warning(text, KEPT)
    namespace = opener.pod.partition("/")[0]
    mode = FenceMode.HOLD if opener.in_pod else FenceMode.REFUSE
    now = ", ".join(sorted({device.fence for device in devices}))
    would = f"`fence: {{mode: {mode.value}}}` would refuse {them}"
    did = f"was let through (mode {now}); {would}"
    if _refused(opener, devices):
        did = f"was let through at that time; the mode {now} refuses {them} now"
    did = "was refused" if opener.refused else did
    if opener.refused_in_part:
        did = f"were refused {quantity(opener.refused, 'time')}, but not each time"
        if opener.opened < policy_since and _refused(opener, devices):
            did = f"were let through at that time; the mode {now} refuses them now"
            did += f" ({quantity(opener.refused, 'time')} so far)"
    if opener.refused and _let_in(opener, devices):
        was = f"were refused {quantity(opener.refused, 'time')}" if opener.refused_in_part else "was refused"
        did = f"{was} by an earlier mode; the mode {now} lets {them} through now, and {would}"
    remedy = f"{views.UNIT_OF_ITS_OWN}. Name it" if opener.in_session else "name its unit"
    remedy += " in fence.exempt.units of the policy, or policy.exempt of the chart; if it is named there "
    remedy += "already, its control group is younger than those of pods, and systemd does not say that it started the "
    remedy += "unit (of a slice it never says so): restart the unit, or for a slice the node"
    if opener.in_pod:
        remedy = f"add {namespace or 'its namespace'} to evict.operator_namespaces of the policy, or "
        remedy += "policy.operatorNamespaces of the chart, if no tenant can create pods there. "
        remedy += "But if pods there get GPUs, it is a namespace of tenants, so do not exempt it"
    if opener.in_pod and namespace in tenants:
        text = f"{asked} and {did}; {times}"
        return warning(text, f"{namespace} is a namespace of tenants, so do not exempt it: ask whose pod this is")
    if opener.ignored:
        return warning(f"{asked} and {did}, although it is a bystander; {times}", remedy)
    return warning(f"{asked} and {did}; {times}", f"if it is a monitor, {remedy}")


@check_of_service("device")
def devices(node: Node, status: views.Status) -> Iterator[Finding]:
    """Nothing is wrong with any of the GPUs."""
    findings = [finding for device in status.devices for finding in _device(device, service_facts.now(node))]
    yield from findings
    if not status.devices:
        remedy = "check that the driver is loaded and sees the GPUs; the service then finds them by itself"
        yield warning("the scrub service sees no GPU on this node", remedy)
    elif not findings:
        yield ok(f"nothing is wrong with the {quantity(len(status.devices), 'GPU')} of this node")


def _device(device: views.DeviceStatus, now: float) -> Iterator[Finding]:
    gpu, see = f"GPU {device.name} ({device.device})", f"`autoclave explain {device.argument}` says what happened"
    out = device.quarantine
    if out is not None:
        yield warning(f"{gpu} is quarantined: {out.reason}: {out.detail}", f"{see} and what to do")
    elif device.state in {State.UNKNOWN.value, State.DIRTY.value} and device.setback:
        but = "" if device.healthy else " and not offered"
        yield warning(f"{gpu} is {state_words(device.state)}{but}: {device.setback}", see)
    elif device.state in {State.UNKNOWN.value, State.DIRTY.value} and now - device.since > LONG:
        yield warning(f"{gpu} has been {device.state} for more than {LONG:.0f} seconds", see)
    elif not device.healthy and device.state in {State.CLEAN.value, State.GRANTED.value, State.IN_USE.value}:
        yield warning(f"{gpu} is {state_words(device.state)} and not offered: {device.why}", see)
    if device.state == State.GRANTED.value and device.receipt is None:
        yield warning(f"{gpu} was handed out without a proof", see)
    yield from _coverage(device, gpu)


def _coverage(device: views.DeviceStatus, gpu: str) -> Iterator[Finding]:
    receipt = device.receipt
    if receipt is None:
        return
    allowed = forgiven_memory(receipt.uncovered)
    if receipt.covered_bytes + allowed >= DEFAULT.min_coverage * receipt.allocatable_bytes:
        return
    share = receipt.covered_bytes / receipt.allocatable_bytes
    remedy = f"compare clear.min_coverage in the policy with its default, then run `autoclave scrub {device.name}`"
    yield warning(f"the proof of {gpu} covers {share:.2%} of its memory, less than {DEFAULT.min_coverage:.2%}", remedy)
