"""Checks of what the scrub service says: whether it answers, its sockets, its ledger, its policy, and its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from autoclave.doctor.finding import OTHER_USER, Finding, as_root, broken, ok, warning
from autoclave.doctor.node_facts import CheckFault, NodeFacts
from ground import calendar_time, errors
from ground.errors import AutoclaveError, Reason, Unreachable
from ground.quantities import quantity
from policies.policy_model import Clear
from scrub_api import views
from scrub_api.device_messages import state_words
from scrubber.core.measured import forgiven_memory
from scrubber.core.model import State
from scrubber.observe.askers import KEPT_FOR

LONG = 60.0  # seconds: by then the scrub of an unknown or dirty device has begun, unless something blocks it
DEFAULT = Clear()  # a receipt below its coverage means that the policy demanded less


def service(facts: NodeFacts) -> Iterator[Finding]:
    """The scrub service answers."""
    match facts.answer:
        case views.Status(service=running):
            about = f"version {running.version}, backend {running.backend}, policy {running.policy}"
            yield ok("service", f"the scrub service answers: {about}")
        case AutoclaveError(reason=Reason.LEDGER_UNAVAILABLE):
            yield ok("service", "the scrub service answers, but cannot use its ledger")
        case Unreachable() if facts.last_error is not None:
            last = facts.last_error
            at = calendar_time.utc(last.at).astimezone().isoformat(sep=" ", timespec="seconds")
            remedy = last.remedy or f"correct that, and {errors.start(on_kubernetes=facts.on_kubernetes)}"
            yield broken("service", f"the scrub service does not run. It ended at {at}: {last.text}", remedy)
        case Unreachable(message=message, remedies=remedies):
            remedy = errors.joined(*remedies) or errors.start(on_kubernetes=facts.on_kubernetes)
            yield broken("service", message, remedy)
        case AutoclaveError() as error:
            text = f"the scrub service gives no status: {error}"
            yield broken("service", text, f"read its log; {errors.restart(on_kubernetes=facts.on_kubernetes)}")


def scrubber_socket(facts: NodeFacts) -> Iterator[Finding]:
    """The plugin's socket file may be gone while the operators' socket still answers."""
    if facts.status is None:
        return
    socket = facts.scrubber_socket
    if socket.fault is not None:
        text = f"the plugin cannot ask the scrub service at {socket.path}: {socket.fault.text}"
        yield broken("scrubber-socket", text, errors.restart(on_kubernetes=facts.on_kubernetes))
    else:
        yield ok("scrubber-socket", f"the scrub service accepts connections of the plugin at {socket.path}")


def run_dir(facts: NodeFacts) -> Iterator[Finding]:
    """No other user may enter the run directory."""
    directory = facts.run_dir
    if directory.fault is not None:
        remedy = (
            f"name the --run-dir of the service, which makes it, or {errors.start(on_kubernetes=facts.on_kubernetes)}"
        )
        text = f"cannot use the run directory {directory.path}: {directory.fault.text}"
        yield broken("run-dir", text, as_root(directory.fault, remedy))
    elif not directory.ours:
        yield broken("run-dir", f"the run directory {directory.path} belongs to another user", OTHER_USER)
    elif not directory.private:
        text = f"other users may write to the run directory {directory.path}, and could replace the socket by their own"
        yield broken("run-dir", text, f"find out what changed its mode; `chmod 0700 {directory.path}`")
    else:
        yield ok("run-dir", f"no other user may enter the run directory {directory.path}")


def ledger(facts: NodeFacts) -> Iterator[Finding]:
    """The last write to the ledger succeeded."""
    match facts.answer:
        case views.Status(service=running) if running.ledger_fault:
            text = f"the ledger cannot be written, so nothing is handed out: {running.ledger_fault}"
            remedy = errors.joined(*running.ledger_remedies) or f"make room in {running.state_dir}, or repair its disk"
            yield broken("ledger", text, remedy)
        case views.Status(service=running):
            rows = quantity(running.ledger_rows, "row")
            yield ok("ledger", f"the last write to the ledger in {running.state_dir} succeeded: {rows}")
        case AutoclaveError(reason=Reason.LEDGER_UNAVAILABLE, message=message, remedies=remedies):
            what = remedies or ("repair what the message names",)
            remedy = errors.joined(*what, "the service then tries again by itself")
            yield broken("ledger", f"there is no ledger, so {message}", remedy)


def set_aside(facts: NodeFacts) -> Iterator[Finding]:
    """No damaged ledger was set aside."""
    if facts.status is None:
        return
    service = facts.status.service
    for name in service.set_aside:
        remedy = (
            "`autoclave ledger export` it, quarantine the same devices again, move the file away, restart the service"
        )
        text = (
            f"a damaged ledger was set aside as {name} in {service.state_dir}; the quarantines in it are not in force"
        )
        yield warning("ledger-set-aside", text, remedy)
    if not service.set_aside:
        yield ok("ledger-set-aside", "no damaged ledger was set aside")


def receipts(facts: NodeFacts) -> Iterator[Finding]:
    """Others can check the receipts. The promise does not need it: a GPU is as clean without a signature."""
    if facts.status is None:
        return
    key = facts.receipt_key
    if key is None:
        text = f"receipts are not signed: {facts.cupy.path} has no package `cryptography`"
        remedy = "install the extra `receipts` (in a checkout: pip install '.[receipts]'), or use the image; restart"
        yield warning("receipts", text, remedy)
    elif isinstance(key, CheckFault):
        text = f"receipts are not signed, or their key is not safe: {key.text}"
        yield warning("receipts", text, key.remedy or OTHER_USER)
    else:
        yield ok("receipts", f"receipts are signed by the key {key}")


def policy(facts: NodeFacts) -> Iterator[Finding]:
    """The newest policy is in force."""
    if facts.status is None:
        return
    service = facts.status.service
    if service.policy_fault:
        # Broken: the service would not start with the policy as it is written.
        text = f"the newest policy is not in force, the old one is: {'; '.join(service.policy_fault.splitlines())}"
        remedy = (
            "correct the file until `autoclave policy check FILE` finds no fault; the service then loads it by itself"
        )
        yield broken("policy", text, remedy)
    else:
        yield ok("policy", f"the newest policy is in force: {service.policy}")


def concessions(facts: NodeFacts) -> Iterator[Finding]:
    """The policy keeps all promises for the devices of this node."""
    if facts.status is None:
        return
    service = facts.status.service
    for sentence in service.concessions:
        remedy = f"if this is not intended, remove it from policy {service.policy}"
        yield warning("concession", f"the policy gives up a promise: {sentence}", remedy)
    if not service.concessions:
        yield ok("concession", f"policy {service.policy} keeps all promises for the devices of this node")


def devices(facts: NodeFacts) -> Iterator[Finding]:
    """Nothing is wrong with any of the GPUs."""
    if facts.status is None:
        return
    devices = facts.status.devices
    findings = [finding for device in devices for finding in _device(device, facts.now)]
    yield from findings
    if not devices:
        remedy = "check that the driver is loaded and sees the GPUs; the service then finds them by itself"
        yield warning("device", "the scrub service sees no GPU on this node", remedy)
    elif not findings:
        yield ok("device", f"nothing is wrong with the {quantity(len(devices), 'GPU')} of this node")


def _device(device: views.DeviceStatus, now: float) -> Iterator[Finding]:
    gpu, see = f"GPU {device.name} ({device.device})", f"`autoclave explain {device.argument}` says what happened"
    out = device.quarantine
    if out is not None:
        text = f"{gpu} is quarantined: {out.reason}: {out.detail}"
        yield warning("device", text, f"{see} and what to do")
    elif device.state in {State.UNKNOWN.value, State.DIRTY.value} and device.setback:
        yield warning("device", f"{gpu} is {state_words(device.state)} and not offered: {device.setback}", see)
    elif device.state in {State.UNKNOWN.value, State.DIRTY.value} and now - device.since > LONG:
        yield warning("device", f"{gpu} has been {device.state} for more than {LONG:.0f} seconds", see)
    elif not device.healthy and device.state in {State.CLEAN.value, State.GRANTED.value, State.IN_USE.value}:
        yield warning("device", f"{gpu} is {state_words(device.state)} and not offered: {device.why}", see)
    if device.state == State.GRANTED.value and device.receipt is None:
        yield warning("device", f"{gpu} was handed out without a proof", see)
    yield from _coverage(device, gpu)
    for setting in device.receipt.unsupported if device.receipt else ():
        remedy = "take it out of the policy's rule for this GPU"
        yield warning("device", f"{gpu}: {setting}; its scrubs leave it out", remedy)


def _coverage(device: views.DeviceStatus, gpu: str) -> Iterator[Finding]:
    receipt = device.receipt
    if receipt is None:
        return
    allowed = forgiven_memory(receipt.uncovered)
    if receipt.covered_bytes + allowed >= DEFAULT.min_coverage * receipt.allocatable_bytes:
        return
    share = receipt.covered_bytes / receipt.allocatable_bytes
    remedy = f"compare clear.min_coverage in the policy with its default, then `autoclave scrub {device.name}`"
    text = f"the proof of {gpu} covers {share:.2%} of its memory, less than {DEFAULT.min_coverage:.2%}"
    yield warning("device", text, remedy)


def fence(facts: NodeFacts) -> Iterator[Finding]:
    """The kernel keeps watch over who opens a GPU, and who would be refused is known."""
    if facts.status is None or not facts.guards_nvidia:
        return
    service, devices = facts.status.service, facts.status.devices
    since = calendar_time.utc(max(service.started, facts.now - KEPT_FOR)).astimezone().isoformat(" ", "minutes")
    if service.fence_lacks:
        text = f"{service.fence_lacks}. Instead, the service searches for users of a GPU, and may miss a short use"
        remedy = "give the node what it lacks and restart the service, or choose `fence: {mode: off}` in the policy"
        yield warning("fence", text, remedy)
        return
    guarded = [device for device in devices if device.fence]
    for device in guarded:
        gpu = f"GPU {device.name} ({device.device})"
        for asker in device.askers:
            did = "was refused" if asker.refused else "would have been refused by `fence: {mode: refuse}`"
            text = f"{asker} asked for {gpu}, which was not given to it, and {did}; {quantity(asker.times, 'question')}"
            remedy = "if it is a monitor, name its unit in fence.exempt.units or its namespace in operator_namespaces"
            yield warning("fence", text, remedy)
    powerless = [device for device in guarded if device.fence == views.WATCHES_ONLY]
    if powerless:
        gpus = quantity(len(powerless), "GPU")
        text = f"the kernel only watches who opens {gpus}, though the policy says `fence: {{mode: refuse}}`: on this "
        text += "node, pods are in control groups of version 1"
        remedy = "boot the node with version 2 of control groups only, or choose `fence: {mode: watch}` in the policy"
        yield warning("fence", text, remedy)
    elif not guarded:
        yield ok("fence", "the kernel does not keep watch over who opens a GPU: the policy does not ask for it")
    elif not any(device.askers for device in guarded):
        modes = ", ".join(sorted({device.fence for device in guarded}))
        text = f"the kernel keeps watch over {quantity(len(guarded), 'GPU')} ({modes})"
        yield ok("fence", f"{text}; no program asked for one that was not given to it since {since}")


def unlisted(facts: NodeFacts) -> Iterator[Finding]:
    """Programs of NVIDIA in namespaces that the policy does not name: no scrub passes while one has the GPU open."""
    if facts.status is None:
        return
    bystanders = facts.status.service.unlisted
    for bystander in bystanders:
        text = (
            f"{bystander.program} had a GPU open in the namespace {bystander.namespace}, which the policy does not name"
        )
        yield warning("bystanders", text, bystander.remedy)
    if not bystanders:
        yield ok("bystanders", "the policy names the namespace of each program of NVIDIA that had a GPU open")
