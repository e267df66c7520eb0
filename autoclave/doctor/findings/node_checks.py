"""Checks of the node: rights, PID namespace, control groups, kernel log, clock, disk, and rival plugins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from autoclave.doctor.facts import kubelet_facts, posture, process_facts, service_facts
from autoclave.doctor.finding import OTHER_USER, Finding, Level, broken, check, check_of_service, ok, unseen, warning
from autoclave.doctor.node_facts import Capability, CheckFault, Node, Process, Room
from ground.quantities import LITTLE_ROOM
from scrub_api import views

YEAR_2024 = 1_704_067_200.0  # seconds: this program is younger, so an earlier clock was never set
# The ledger's journal grows to 4 MiB. Then it is written into the ledger, and both need space for a moment: with less
# than 10 MiB the next write may fail. 100 MiB hold more than 100,000 events: weeks on a busy node.
FEW_BYTES = 10 * 2**20
LOW_FILES, FEW_FILES = 1000, 16  # the ledger is a handful of files

NODE_NAMESPACE = "run it in the node's PID namespace (in a pod: hostPID: true)"


@check("pid-namespace", posture.guards_nvidia)
def pid_namespace(node: Node) -> Iterator[Finding]:
    """The driver silently leaves out processes of other PID namespaces: an empty list would prove nothing."""
    service, here = process_facts.process(node), process_facts.sees_all(node)
    if isinstance(service, Process):
        if service.sees_all:
            yield ok("the scrub service sees every process of this node")
        else:
            text = "the scrub service runs in a PID namespace of its own: it cannot see which processes use a GPU"
            yield broken(text, NODE_NAMESPACE)
    elif service_facts.answers(node):
        text = "cannot tell whether the scrub service sees every process of this node"
        yield unseen(text, service, f"run this check where the service runs, or {NODE_NAMESPACE}")
    elif isinstance(here, CheckFault):
        yield unseen("cannot tell in which PID namespace this check runs", here, "mount /proc")
    elif not here:
        text = "this check runs in a PID namespace of its own: it cannot see which processes use a GPU"
        yield broken(text, f"if the scrub service runs here, {NODE_NAMESPACE}")
    else:
        yield ok("this check sees every process of this node")


@check("processes", posture.guards_nvidia)
def processes(node: Node) -> Iterator[Finding]:
    """A process that cannot be read may use any GPU."""
    if process_facts.sees_all(node) is False:  # ``pid-namespace`` then says why
        return
    fault = process_facts.unreadable(node)
    if fault is None:
        yield ok("every process of this node can be read")
        return
    text = "it cannot be proven that no process uses a GPU, so nothing is handed out"
    yield unseen(text, fault, "end it, or find out what keeps it from being read")


@check("privileges", posture.guards_nvidia)
def privileges(node: Node) -> Iterator[Finding]:
    """The scrub service has the privileges that it needs."""
    service = process_facts.process(node)
    if isinstance(service, CheckFault):  # ``service`` or ``pid-namespace`` says why
        return
    remedy = "run it as root, and let it keep CAP_{} (in a pod: securityContext.capabilities.add)"
    lacks = [capability for capability in LOSSES if not service.may(capability)]
    for capability in lacks:
        level, loss = LOSSES[capability]
        yield Finding(level, f"the scrub service lacks CAP_{capability.name}: {loss}", remedy.format(capability.name))
    if not lacks:
        yield ok("the scrub service has the privileges that it needs")


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


@check("cgroups", posture.guards_nvidia)
def cgroups(node: Node) -> Iterator[Finding]:
    """Control groups show which container a process belongs to."""
    versions = posture.cgroups(node)
    if isinstance(versions, CheckFault):
        text = "cannot tell which container a process belongs to"
        yield unseen(text, versions, "mount the host's /sys here, under --host-root")
    else:
        yield ok(f"control groups are in use, {versions}: they show which container a process belongs to")


@check("kernel-log", posture.guards_nvidia)
def kernel_log(node: Node) -> Iterator[Finding]:
    """The service reads XIDs from the kernel's log. Without it, NVML reports only those after the start."""
    fault = posture.kernel_log(node)
    if fault is None:
        yield ok("the kernel log can be read: the driver reports XIDs and SXids there")
        return
    text = "the kernel log cannot be read: XIDs before the start, and SXids, are not seen"
    remedy = "let the service have the host's /dev/kmsg, and CAP_SYSLOG (in a pod: privileged)"
    yield unseen(text, fault, remedy, Level.WARNING)


@check("file-watches")
def file_watches(node: Node) -> Iterator[Finding]:
    """Services that cannot watch a file look at it every few seconds."""
    fault = posture.file_watches(node)
    if fault is None:
        yield ok("files can be watched: a change of the policy is seen at once")
        return
    text = "this user can watch no file: changes of the policy and of the kubelet's sockets are seen 5 seconds late"
    if not posture.guards_nvidia(node):
        text += ", and simulated GPUs are not handed out"
    remedy = (
        "end the program that has most of them (`find /proc/[0-9]*/fd -lname anon_inode:inotify`), "
        "or raise `sysctl fs.inotify.max_user_instances`"
    )
    yield unseen(text, fault, remedy, Level.WARNING)


@check("clock")
def clock(node: Node) -> Iterator[Finding]:
    """The clock matters to people who read the ledger; decisions use uptime."""
    remedy = "set the clock, and keep it set (chrony, systemd-timesyncd)"
    status, now = service_facts.status(node), service_facts.now(node)
    if now < YEAR_2024:
        yield warning("the clock was never set: the times in the ledger mean nothing", remedy)
    elif status is not None and now < status.service.started:
        text = "the clock was set back since the scrub service started: the times in the ledger are out of order"
        yield warning(text, remedy)
    else:
        yield ok("the clock is set")


@check_of_service("disk")
def disk(node: Node, status: views.Status) -> Iterator[Finding]:
    """The ledger has room."""
    directory = status.service.state_dir
    yield room_for_ledger(directory, posture.room(node, directory))


def room_for_ledger(directory: str, room: Room | CheckFault) -> Finding:
    """The finding about the room in a state directory."""
    if isinstance(room, CheckFault):
        text, remedy = f"cannot tell how much room there is in {directory}", "run this check where the service runs"
        return unseen(text, room, remedy, Level.WARNING)
    files = float("inf") if room.free_files is None else room.free_files
    left = f"{room.free_bytes // 2**20} MiB" + ("" if room.free_files is None else f" and {room.free_files} files")
    remedy = f"make room in {directory}, or move it with --state-dir"
    if room.free_bytes < FEW_BYTES or files < FEW_FILES:
        text = f"the ledger in {directory} has room for only {left}: if the next write fails, nothing is handed out"
        return broken(text, remedy)
    if room.free_bytes < LITTLE_ROOM or files < LOW_FILES:
        return warning(f"the ledger in {directory} has room for only {left}", remedy)
    return ok(f"the ledger in {directory} has room for {left}")


@check("plugin-dir", kubelet_facts.has_kubelet_dir, of_kubernetes=True)
def plugin_dir(node: Node) -> Iterator[Finding]:
    """A plugin that answers has made its directory, whether or not the doctor may write there."""
    path = kubelet_facts.kubelet_dir(node).path
    sockets = kubelet_facts.plugin(node).found
    if kubelet_facts.kubelet_dir_writable(node) or any(socket.fault is None for socket in sockets):
        yield ok(f"the plugin can make its sockets in {path}")
    else:
        text = f"this check cannot write to {path}, where the plugin makes its sockets"
        yield warning(text, f"mount it read-write for `autoclave plugin`; or {OTHER_USER}")


@check("rival-plugin", kubelet_facts.has_kubelet_dir)
def rivals(node: Node) -> Iterator[Finding]:
    """The kubelet uses the plugin that registered last for a resource, and silently drops the other."""
    if front := kubelet_facts.in_front(node):
        yield ok(f"a vendor's plugin registers at {front}; /readyz of the plugin says whether it has")
        return
    sockets = kubelet_facts.rivals(node)
    if sockets.fault is not None:
        text = f"cannot tell whether another plugin serves in {sockets.directory}"
        yield unseen(text, sockets.fault, "name the kubelet's directory with --kubelet-dir")
        return
    hidden = [
        (socket.path, socket.fault) for socket in sockets.found if socket.fault is not None and not socket.fault.dead
    ]
    for path, fault in hidden:
        yield unseen(f"cannot tell whether another plugin serves at {path}", fault, REMOVE_OTHER)
    texts = [
        f"another plugin for NVIDIA GPUs serves at {socket.path}" for socket in sockets.found if socket.fault is None
    ]
    texts += list(_other_names(node))
    for text in texts:
        yield broken(f"{text}: the GPUs that it hands out are not proven clean", REMOVE_OTHER)
    if not texts and not hidden:
        yield ok("no other plugin for NVIDIA GPUs was found")


REMOVE_OTHER = (
    "remove the other plugin (in NVIDIA's GPU Operator: devicePlugin.enabled=false), then restart `autoclave plugin`"
)


def _other_names(node: Node) -> Iterator[str]:
    """Our devices that the kubelet knows under several names: a plugin with time-slicing registers such names."""
    registered = kubelet_facts.registered(node)
    if isinstance(registered, CheckFault):  # ``checkpoint`` says why
        return
    names: dict[str, set[str]] = defaultdict(set)
    for resource, ids in registered.items():
        for name in ids:
            names[name.partition("::")[0]].add(f"{resource} as {name}")
    status = service_facts.status(node)
    ours_by_uuid = None if status is None else {device.device for device in status.devices}
    for device, places in sorted(names.items()):
        ours = device in ours_by_uuid if ours_by_uuid is not None else device.startswith(("GPU-", "MIG-"))
        if ours and (len(places) > 1 or any("::" in place for place in places)):
            yield f"the kubelet knows {device} under names that another plugin registered ({', '.join(sorted(places))})"
