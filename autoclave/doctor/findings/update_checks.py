"""What an update changes on a node, as findings: what is renamed, what means something else, what is scrubbed again."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import replace

from autoclave.doctor.facts import chart_values
from autoclave.doctor.facts.update_facts import Choice, PolicyAsRead, Update
from autoclave.doctor.finding import Finding, broken, ok, warning
from autoclave.doctor.findings import node_checks
from autoclave.doctor.node_facts import CheckFault
from ground.documents.faults import describe
from ground.quantities import quantity
from policies import load, match
from policies.policy_model import Mode, Policy, PolicySet
from policies.values import FenceMode
from scrub_api.device_messages import state_words
from scrubber.core import absence, next_action
from scrubber.core.model import DeviceInfo, Moment, ScrubPath, State
from scrubber.core.record import Record
from scrubber.core.use_counter import UseCounter
from scrubber.ledger import database

SOON = 600.0  # seconds: a test that is due by then comes with the update

ANOTHER_PROOF = "because the policy demands another proof than was given"
BY_A_RESET = "by a reset, because the test that may end its quarantine is due within ten minutes"
BY_A_TEST = "by a self-test, because the test that may end its quarantine is due within ten minutes"
CHOOSE_A_TIME = "update while nobody waits for these GPUs, or a few nodes at a time (updateStrategy.maxUnavailable)"
WHERE = "on a node with version 2 of control groups"
KEEP_THE_FENCE = "if this is not intended, set `fence.mode` of the policy or policy.fence of the values as before"

# What the finding about a policy adds, if neither a flag nor the values name it.
CHOSEN = {
    Choice.CHART: ", which the chart chooses, because the values choose none",
    Choice.LAST: ", the last one of this node (--policy names another one)",
}

# What the chart accepts, of the values that choose a policy.
CHOICES = {"policy.shipped": load.shipped(), "policy.fence": ("", *(mode.value for mode in FenceMode))}

# How many a fence keeps off, and what that is called.
KEEPS_OFF = {FenceMode.OFF: 0, FenceMode.WATCH: 0, FenceMode.HOLD: 1, FenceMode.REFUSE: 2}
FROM_NOW_ON = {
    FenceMode.OFF: "has no fence from this update on",
    FenceMode.WATCH: "only watches from this update on",
    FenceMode.HOLD: "holds pods from this update on (`fence: {mode: hold}`)",
    FenceMode.REFUSE: "refuses from this update on (`fence: {mode: refuse}`)",
}
BEFORE = {
    FenceMode.OFF: "nobody was kept off",
    FenceMode.WATCH: "nobody was kept off",
    FenceMode.HOLD: "pods were held",
    FenceMode.REFUSE: "pods and programs of the host were refused",
}
AFTER = {
    FenceMode.OFF: "every pod and every program of the host can open each GPU, and nobody counts that",
    FenceMode.WATCH: "every pod and every program of the host can open each GPU, and is counted",
    FenceMode.HOLD: "a pod cannot open a GPU that it was not given, unless its namespace is exempt, and waits in its "
    "container for a scrub",
    FenceMode.REFUSE: "no pod and no program of the host can open a GPU that it was not given. A monitor that is not "
    "exempt sees no GPU",
}


def judge(update: Update) -> tuple[Finding, ...]:
    """All findings about an update, each with its name."""
    checks: dict[str, Callable[[Update], Iterator[Finding]]] = {
        "ledger": _ledger,
        "disk": _disk,
        "quarantine": _quarantines,
        "owner": _owners,
        "receipt-key": _key,
        "fence": _fence,
        "policy": _policy,
        "scrub": _scrubs,
        "values": _values,
    }
    return tuple(replace(finding, name=name) for name, check in checks.items() for finding in check(update))


def _ledger(update: Update) -> Iterator[Finding]:
    """The ledger is taken over."""
    ledger, gpus = update.ledger, quantity(len(update.ledger.records), "GPU")
    yield from _state(update)
    if ledger.version == database.VERSION:
        text = f"the ledger {ledger.path} has the format of this version, and knows {gpus}. If an older build of this "
        yield ok(f"{text}format runs here, `Which version is on a node?` in docs/upgrading.md says what to read")
        return
    text = f"the ledger {ledger.path} of format {ledger.version} is taken over as format {database.VERSION}: what it "
    text += f"says of {gpus} stays. The older version refuses it from then on"
    read = f"read the section from format {ledger.version} in docs/upgrading.md"
    keep = f"to be able to go back, drain the node, stop the service, and copy {ledger.path.parent} before the update"
    yield warning(text, f"{keep}; {read}")


def _state(update: Update) -> Iterator[Finding]:
    """The service can use the state directory."""
    state = update.state
    if state is not None and state.owner != state.user:
        text = f"{state.path} belongs to uid {state.owner}, and this check runs as uid {state.user}: it does not know "
        text += "whether a service of that user can use the ledger and the key of receipts"
        become, place = f"sudo -u '#{state.owner}'" if state.owner else "sudo", state.path.absolute()
        remedy = "check as that user, with the program of the new version: "
        remedy += f"`{become} autoclave doctor --for-update {place}`; or, if the service runs as uid "
        yield broken(text, f"{remedy}{state.user}, `chown -R {state.user} {place}`")
    if state is not None and state.fault is not None:
        does = "starts, but hands out no GPU" if state.fault.starts else "does not start"
        yield broken(f"the service {does}: it cannot use {state.fault.why}", "then check the update again")


def _disk(update: Update) -> Iterator[Finding]:
    """The ledger has room."""
    if update.state is not None:
        yield node_checks.room_for_ledger(str(update.state.path), update.state.room)


def _list(update: Update, name: str) -> list[object]:
    """This value of the chart as a list; empty if it is not a list."""
    found = chart_values.value_of(update.values, name)
    return found if isinstance(found, list) else []


def _quarantines(update: Update) -> Iterator[Finding]:
    """Each quarantine holds."""
    out = False
    for record in update.ledger.records.values():
        quarantine, ailment = record.health.quarantine, record.health.ailment
        if quarantine is not None:
            ailment = quarantine.ailment
            until = "an operator reinstates it" if quarantine.next_probe is None else "a test of Autoclave passes"
            yield ok(f"{_gpu(record.device)} stays quarantined until {until}: {ailment.kind.value}: {ailment.detail}")
        elif ailment is not None:
            when = "is quarantined as soon as its owner has ended, as before the update"
            yield ok(f"{_gpu(record.device)} {when}: {ailment.kind.value}: {ailment.detail}")
        out = out or ailment is not None
    if not out:
        yield ok("no GPU is quarantined")


def _owners(update: Update) -> Iterator[Finding]:
    """Each GPU stays with its owner."""
    owned = [record for record in update.ledger.records.values() if record.state in (State.GRANTED, State.IN_USE)]
    for record in owned:
        text = (
            f"{_gpu(record.device)} stays with {_owner(record)} if the run directory stays, and what runs there goes on"
        )
        if record.incarnation.boot_id != update.boot_id:
            text = f"{_gpu(record.device)} was with {_owner(record)} in another boot, or this is another machine"
        yield ok(text)
    if not owned:
        yield ok("no GPU has an owner")


def _key(update: Update) -> Iterator[Finding]:
    """The key that signed the receipts goes on to sign them."""
    state, before = update.state, update.signed_by
    if state is None or state.owner != state.user:
        return
    keys, folder = state.keys, state.key_folder
    anew = f"put {folder} back from a copy; or give the public key to those who verify receipts, after the update: "
    anew += "`autoclave receipt key` prints it"
    stops = f"the key {before} no longer signs receipts" if before else "receipts are not signed"
    if isinstance(keys, CheckFault):
        own = f"`chown -R {state.user} {folder}` and `chmod -R go-rwx {folder}`"
        if before or not keys.absent:
            yield warning(f"{stops}: {keys.text}", anew if keys.absent else keys.remedy or own)
    elif before and before not in keys:
        yield warning(f"{stops}: {folder} holds another key, {' and '.join(keys)}", anew)
    else:
        rotated = [f"; from the next start on, by the key {key}, for which it vouches" for key in keys[1:]]
        yield ok(f"receipts stay signed by the key {keys[0]}{''.join(rotated)}")


def _owner(record: Record) -> str:
    tenancy, owner = record.tenancy, record.tenancy.owner
    if tenancy.acquired_by:
        return tenancy.acquired_by
    if owner is None:
        return "the pod that it was granted to"
    return f"the pod {owner.called or owner.container}" if owner.called or owner.container else "a user without a name"


def _policy(update: Update) -> Iterator[Finding]:
    """This version takes the policy."""
    policy = update.policy
    for fault in policy.faults:
        text = f"this version refuses the policy: {_started(update)}: {fault}"
        remedy = "correct the file until `autoclave policy check FILE` of this version finds no fault"
        yield broken(text, f"{remedy}, and check the update again: the findings `fence` and `scrub` need the policy")
    if update.unread:
        named = ", ".join(update.unread)
        text = f"the policy in {named} of the values was not read: the last one of the node is judged"
        yield warning(text, "name the policy of this node by --policy, if it changes with the update")
    if policy.unread:
        text = f"the last policy of the node{f', {policy.source},' * bool(policy.source)} {policy.unread}"
        remedy = "name the policy of this node by --policy: the findings `fence` and `scrub` need it"
        yield warning(f"{text}: no policy was judged", remedy)
    if policy.policies is not None:
        yield ok(f"this version takes the policy {_called(policy, policy.policies)}{CHOSEN.get(update.choice, '')}")


def _started(update: Update) -> str:
    """What a service of this version does at its start with a policy that it refuses."""
    policy, last = update.policy, update.last
    if not last.place or update.choice is Choice.LAST:
        return "its service does not start, and has kept no other policy"
    if last.policies is None:
        return f"its service does not start, because it also refuses the last policy, {last.source}"
    keeps = f"its service keeps the last policy, {last.policies.name}"
    if not policy.place:
        return f"{keeps}, if its policy file is still {last.place}; it does not start with another file"
    if policy.place == last.place:
        return keeps
    return f"its service does not start, because its last policy is of another file, {last.place}"


def _called(policy: PolicyAsRead, policies: PolicySet) -> str:
    return policies.name if policy.source == policies.name else f"{policies.name} ({policy.source})"


def _fence(update: Update) -> Iterator[Finding]:
    """Whom the last policy kept off a GPU, the next one keeps off, and nobody else."""
    policies = update.policy.policies
    if policies is None:
        return
    modes = {(_before(update, device), _resolved(policies, device).fence_mode) for device in _devices(update)}
    changes = [_change(update, policies.name, *pair) for pair in sorted(modes, key=str)]
    yield from (found for found in changes if found)
    if not any(changes):
        yield ok(f"the update does not change whom the policy {policies.name} keeps off a GPU")


def _devices(update: Update) -> list[DeviceInfo]:
    """The devices of the node; of a ledger without any, one that no rule names."""
    return [record.device for record in update.ledger.records.values()] or [DeviceInfo("", -1, "", 0)]


def _before(update: Update, device: DeviceInfo) -> FenceMode | None:
    """What the fence of the older version did with a device; None if that is not known."""
    if update.last.policies is None:
        return None
    return _resolved(update.last.policies, device).fence_mode


def _as_before(mode: FenceMode | None) -> str:
    """The remedy where more are kept off: first update with the fence of before, but never without one."""
    word = FenceMode.HOLD.value if mode is FenceMode.HOLD else FenceMode.WATCH.value
    first = f"update with `fence: {{mode: {word}}}` (policy.fence={word} of the chart) first"
    return f"{first}; then `autoclave fence plan` names who asks, and what exempts it"


def _change(update: Update, name: str, before: FenceMode | None, after: FenceMode) -> Finding | None:
    """The finding about devices whose fence did this before and does that after the update."""
    if before is not None and KEEPS_OFF[before] == KEEPS_OFF[after]:
        return None
    last = update.last.policies.name if update.last.policies is not None else update.last.source
    under = f" under the policy {last}" if last else ""
    if before is None:
        text = f"it is not known whom the fence kept off a GPU before the update{under}. After it, {WHERE}, "
        return warning(f"{text}{AFTER[after]}: the policy {name} {FROM_NOW_ON[after]}", _as_before(before))
    text = f"the policy {name} {FROM_NOW_ON[after]}: {WHERE}, {AFTER[after]}. "
    text += f"Before{f',{under}' * bool(under)}, {BEFORE[before]}"
    chosen = chart_values.value_of(update.values, "policy.fence")
    if chosen and not update.fence_known:
        text += f", unless policy.fence={chosen} was in force already"
    return warning(text, _as_before(before) if KEEPS_OFF[after] > KEEPS_OFF[before] else KEEP_THE_FENCE)


def _scrubs(update: Update) -> Iterator[Finding]:
    """No GPU is scrubbed before it is handed out again. Those with the same reason stand in one finding."""
    policies, again = update.policy.policies, dict[str, list[str]]()
    for record in update.ledger.records.values():
        if policies is not None and (why := _scrubbed(record, _resolved(policies, record.device), update)):
            again.setdefault(why, []).append(record.device.name)
    for why, names in again.items():
        text = f"GPU {', '.join(names)}: a scrub follows the update, {why}"
        yield warning(text, CHOOSE_A_TIME) if why in (ANOTHER_PROOF, BY_A_RESET) else ok(text)
    if policies is not None and not again:
        yield ok("no scrub follows the update")


def _scrubbed(record: Record, policy: Policy, update: Update) -> str | None:
    """Why a scrub of the device follows the update; None if none does."""
    receipt, grant = record.scrubs.receipt, record.tenancy.grant
    if policy.mode is Mode.OBSERVE:
        return None
    match record.state:
        case State.SCRUBBING:
            return "because it cuts the present one off"
        case State.UNKNOWN | State.DIRTY:
            return f"as soon as nobody has it open, because the present state is {state_words(record.state.value)}"
        case State.QUARANTINED:
            return _tested(record, policy, update)
        case _ if record.incarnation.boot_id != update.boot_id:
            return "because the ledger is of another boot, or of another machine than this one"
        case State.GRANTED if grant is not None and grant.announced:
            return "because no container of the pod has started yet, and the proof ends with the old service"
        case State.GRANTED | State.IN_USE:
            return None
        case State.CLEAN if receipt is None or receipt.policy_digest != policy.proof_digest:
            return ANOTHER_PROOF
        case State.CLEAN if receipt.witness == UseCounter.FENCE.value:
            return "unless the fence stays, and nobody opens the GPU meanwhile"
        case State.CLEAN:
            return "because the proof ends with the old service: no fence watches over the GPU meanwhile"


def _tested(record: Record, policy: Policy, update: Update) -> str | None:
    """Why a test of the quarantined device follows the update; None if none does soon. A boot times it anew."""
    if record.incarnation.boot_id != update.boot_id or absence.is_gone(record):
        return None
    test = next_action.probation(record, policy, Moment(0.0, update.uptime + SOON))
    if test is None:
        return None
    return BY_A_RESET if test.path is ScrubPath.RESET else BY_A_TEST


def _resolved(policies: PolicySet, device: DeviceInfo) -> Policy:
    subject = match.Subject(device.uuid, device.index, device.model, device.mig, device.resource)
    return match.resolve(policies, subject).policy


def _values(update: Update) -> Iterator[Finding]:
    """The chart and its programs take the values."""
    values, findings = update.values, list[Finding]()
    for name, why in chart_values.former_values().items():
        if chart_values.value_of(values, name) is not None:
            findings.append(warning(f"the value {name} changes nothing any more: {why}", "take it out of the file"))
    if values.get("nameOverride"):
        text = "the chart refuses the value nameOverride: without it, it would create each object beside the old one"
        remedy = "set fullnameOverride to the name that `helm upgrade --dry-run` prints, and take nameOverride out"
        findings.append(broken(text, remedy))
    for name, words in CHOICES.items():
        chosen = chart_values.value_of(values, name)
        if chosen is not None and chosen not in words:
            near = difflib.get_close_matches(str(chosen), words, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            text = f"the chart refuses the value {name}: {chosen} does not exist{hint}"
            findings.append(broken(text, f"choose one of {', '.join(filter(None, words))}"))
    for name, known in update.flags.items():
        found = chart_values.value_of(values, name)
        if not isinstance(found, list | None):
            text = f"the chart refuses the value {name}: found {describe(found)}, expected a list"
            findings.append(broken(text, "write each flag as an entry of a list"))
        for argument in _list(update, name):
            flag = str(argument).partition("=")[0]
            if flag.startswith("-") and flag not in known:
                text = f"{name} has the flag {flag}, which this version does not know: the pods do not start"
                findings.append(broken(text, f"take {flag} out of {name}"))
    yield from findings
    if values and not findings:
        yield ok("no value of the file was renamed or has left; `helm upgrade --dry-run` checks the others")


def _gpu(device: DeviceInfo) -> str:
    return f"GPU {device.name} ({device.uuid})"
