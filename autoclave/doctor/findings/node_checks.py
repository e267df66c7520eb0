"""Checks of the node: privileges of the service, clock, disk, and other plugins that hand out GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from autoclave.doctor.finding import OTHER_USER, Finding, Level, broken, ok, unseen, warning
from autoclave.doctor.node_facts import Capability, CheckFault, NodeFacts, Process
from ground.quantities import LITTLE_ROOM

YEAR_2024 = 1_704_067_200.0  # seconds: this program is younger, so an earlier clock was never set
# The ledger's journal grows to 4 MiB. Then it is written into the ledger, and both need space for a moment: with less
# than 10 MiB the next write may fail. 100 MiB hold more than 100,000 events: weeks on a busy node.
FEW_BYTES = 10 * 2**20
LOW_FILES, FEW_FILES = 1000, 16  # the ledger is a handful of files

NODE_NAMESPACE = "run it in the node's PID namespace (in a pod: hostPID: true)"


def pid_namespace(facts: NodeFacts) -> Iterator[Finding]:
    """The driver silently leaves out processes of other PID namespaces: an empty list would prove nothing."""
    if not facts.guards_nvidia:
        return
    name, service, here = "pid-namespace", facts.process, facts.sees_all
    if isinstance(service, Process):
        if service.sees_all:
            yield ok(name, "the scrub service sees every process of this node")
        else:
            text = "the scrub service runs in a PID namespace of its own: it cannot see which processes use a GPU"
            yield broken(name, text, NODE_NAMESPACE)
    elif facts.status is not None:
        text = "cannot tell whether the scrub service sees every process of this node"
        yield unseen(name, text, service, f"run this check where the service runs, or {NODE_NAMESPACE}")
    elif isinstance(here, CheckFault):
        yield unseen(name, "cannot tell in which PID namespace this check runs", here, "mount /proc")
    elif not here:
        text = "this check runs in a PID namespace of its own: it cannot see which processes use a GPU"
        yield broken(name, text, f"if the scrub service runs here, {NODE_NAMESPACE}")
    else:
        yield ok(name, "this check sees every process of this node")


def processes(facts: NodeFacts) -> Iterator[Finding]:
    """A process that cannot be read may use any GPU."""
    if not facts.guards_nvidia or facts.sees_all is False:  # ``pid-namespace`` then says why
        return
    if facts.unreadable is None:
        yield ok("processes", "every process of this node can be read")
        return
    text = "it cannot be proven that no process uses a GPU, so nothing is handed out"
    yield unseen("processes", text, facts.unreadable, "end it, or find out what keeps it from being read")


def privileges(facts: NodeFacts) -> Iterator[Finding]:
    """The scrub service has the privileges that it needs."""
    service = facts.process
    if not facts.guards_nvidia or isinstance(service, CheckFault):  # ``service`` or ``pid-namespace`` says why
        return
    remedy = "run it as root, and let it keep CAP_{} (in a pod: securityContext.capabilities.add)"
    lacks = [capability for capability in LOSSES if not service.may(capability)]
    for capability in lacks:
        level, loss = LOSSES[capability]
        text = f"the scrub service lacks CAP_{capability.name}: {loss}"
        yield Finding("privileges", level, text, remedy.format(capability.name))
    if not lacks:
        yield ok("privileges", "the scrub service has the privileges that it needs")


LOSSES = {
    Capability.DAC_READ_SEARCH: (
        Level.BROKEN,
        "it cannot inspect processes of other users, which may use a GPU, so nothing is handed out",
    ),
    Capability.SYS_PTRACE: (Level.BROKEN, "it cannot prove that no process uses a GPU, so nothing is handed out"),
    Capability.KILL: (Level.WARNING, "it cannot end the processes that a tenant left behind"),
    Capability.SYS_ADMIN: (
        Level.BROKEN,
        "it cannot see which processes have a GPU mapped, so nothing is handed out",
    ),
}


def cgroups(facts: NodeFacts) -> Iterator[Finding]:
    """Control groups show which container a process belongs to."""
    if not facts.guards_nvidia:
        return
    versions = facts.cgroups
    if isinstance(versions, CheckFault):
        text = "cannot tell which container a process belongs to"
        yield unseen("cgroups", text, versions, "mount the host's /sys here, under --host-root")
    else:
        yield ok("cgroups", f"control groups are in use, {versions}: they show which container a process belongs to")


def kernel_log(facts: NodeFacts) -> Iterator[Finding]:
    """The service reads XIDs from the kernel's log. Without it, NVML reports only those after the start."""
    if not facts.guards_nvidia:
        return
    name, fault = "kernel-log", facts.kernel_log
    if fault is None:
        yield ok(name, "the kernel log can be read: the driver reports XIDs and SXids there")
        return
    text = "the kernel log cannot be read: XIDs before the start, and SXids, are not seen"
    remedy = "let the service have the host's /dev/kmsg, and CAP_SYSLOG (in a pod: privileged)"
    yield unseen(name, text, fault, remedy, Level.WARNING)


def file_watches(facts: NodeFacts) -> Iterator[Finding]:
    """Services that cannot watch a file look at it every few seconds."""
    name, fault = "file-watches", facts.file_watches
    if fault is None:
        yield ok(name, "files can be watched: a change of the policy is seen at once")
        return
    text = "this user can watch no file: changes of the policy and of the kubelet's sockets are seen 5 seconds late"
    if not facts.guards_nvidia:
        text += ", and simulated GPUs are not handed out"
    remedy = (
        "end the program that has most of them (`find /proc/[0-9]*/fd -lname anon_inode:inotify`), "
        "or raise `sysctl fs.inotify.max_user_instances`"
    )
    yield unseen(name, text, fault, remedy, Level.WARNING)


def clock(facts: NodeFacts) -> Iterator[Finding]:
    """The clock matters to people who read the ledger; decisions use uptime."""
    remedy = "set the clock, and keep it set (chrony, systemd-timesyncd)"
    if facts.now < YEAR_2024:
        yield warning("clock", "the clock was never set: the times in the ledger mean nothing", remedy)
    elif facts.status is not None and facts.now < facts.status.service.started:
        text = "the clock was set back since the scrub service started: the times in the ledger are out of order"
        yield warning("clock", text, remedy)
    else:
        yield ok("clock", "the clock is set")


def disk(facts: NodeFacts) -> Iterator[Finding]:
    """The ledger has room."""
    room = facts.room
    if facts.status is None or room is None:
        return
    directory = facts.status.service.state_dir
    if isinstance(room, CheckFault):
        text, remedy = f"cannot tell how much room there is in {directory}", "run this check where the service runs"
        yield unseen("disk", text, room, remedy, Level.WARNING)
        return
    files = float("inf") if room.free_files is None else room.free_files
    left = f"{room.free_bytes // 2**20} MiB" + ("" if room.free_files is None else f" and {room.free_files} files")
    remedy = f"make room in {directory}, or move it with --state-dir"
    if room.free_bytes < FEW_BYTES or files < FEW_FILES:
        text = f"the ledger in {directory} has room for only {left}: if the next write fails, nothing is handed out"
        yield broken("disk", text, remedy)
    elif room.free_bytes < LITTLE_ROOM or files < LOW_FILES:
        yield warning("disk", f"the ledger in {directory} has room for only {left}", remedy)
    else:
        yield ok("disk", f"the ledger in {directory} has room for {left}")


def plugin_dir(facts: NodeFacts) -> Iterator[Finding]:
    """A plugin that answers has made its directory, whether or not the doctor may write there."""
    if facts.kubelet_dir.fault is not None:
        return
    path = facts.kubelet_dir.path
    if facts.kubelet_dir_writable or any(socket.fault is None for socket in facts.plugin.found):
        yield ok("plugin-dir", f"the plugin can make its sockets in {path}")
    else:
        text = f"this check cannot write to {path}, where the plugin makes its sockets"
        yield warning("plugin-dir", text, f"mount it read-write for `autoclave plugin`; or {OTHER_USER}")


def rivals(facts: NodeFacts) -> Iterator[Finding]:
    """The kubelet uses the plugin that registered last for a resource, and silently drops the other."""
    if facts.kubelet_dir.fault is not None:
        return
    if facts.in_front:
        text = f"a vendor's plugin registers at {facts.in_front}; /readyz of the plugin says whether it has"
        yield ok("rival-plugin", text)
        return
    sockets = facts.rivals
    if sockets.fault is not None:
        text = f"cannot tell whether another plugin serves in {sockets.directory}"
        yield unseen("rival-plugin", text, sockets.fault, "name the kubelet's directory with --kubelet-dir")
        return
    hidden = [
        (socket.path, socket.fault) for socket in sockets.found if socket.fault is not None and not socket.fault.dead
    ]
    for path, fault in hidden:
        yield unseen("rival-plugin", f"cannot tell whether another plugin serves at {path}", fault, REMOVE_OTHER)
    texts = [
        f"another plugin for NVIDIA GPUs serves at {socket.path}" for socket in sockets.found if socket.fault is None
    ]
    texts += list(_other_names(facts))
    for text in texts:
        yield broken("rival-plugin", f"{text}: the GPUs that it hands out are not proven clean", REMOVE_OTHER)
    if not texts and not hidden:
        yield ok("rival-plugin", "no other plugin for NVIDIA GPUs was found")


REMOVE_OTHER = (
    "remove the other plugin (in NVIDIA's GPU Operator: devicePlugin.enabled=false), then restart `autoclave plugin`"
)


def _other_names(facts: NodeFacts) -> Iterator[str]:
    """Our devices that the kubelet knows under several names: a plugin with time-slicing registers such names."""
    registered = facts.registered
    if isinstance(registered, CheckFault):  # ``checkpoint`` says why
        return
    names: dict[str, set[str]] = defaultdict(set)
    for resource, ids in registered.items():
        for name in ids:
            names[name.partition("::")[0]].add(f"{resource} as {name}")
    ours_by_uuid = None if facts.status is None else {device.device for device in facts.status.devices}
    for device, places in sorted(names.items()):
        ours = device in ours_by_uuid if ours_by_uuid is not None else device.startswith(("GPU-", "MIG-"))
        if ours and (len(places) > 1 or any("::" in place for place in places)):
            yield f"the kubelet knows {device} under names that another plugin registered ({', '.join(sorted(places))})"
