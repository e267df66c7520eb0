"""Is the create gate in force on a device: does the container runtime ask before it creates a container with it?

No program can know what the container runtime will do. So the answer rests on what it did: it asked about a device of
the node, the service let the container through, and since then nothing has shown that it may not ask again. Deferral
rests on the answer: a device that is not clean is given to a pod only because its containers wait at the gate.

Rule 1: what one container has shown of the runtime counts for all devices: they are in one specification. A container
        that comes past the gate, on whatever device, ends the answer for all devices. From then on, each device needs
        a container of its own that was let through later. The service does not look for one on a device under mode
        ``observe``: several pods may share it, and the service remembers only the last one that asked.
Rule 2: a change of the specification or another run of the container runtime ends it for all devices, too.
Rule 3: only a container of the pod that was given the device shows that the runtime did not ask. Other users of the
        device, such as monitoring agents and pods that name GPUs in a variable, never had its gate: their use is
        unauthorised, and says nothing about the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scrubber.core import events as ev
from scrubber.core import proof
from scrubber.core.model import Facts, Passage, State
from scrubber.core.record import Record

LASTS = 86400.0  # seconds after the last container that was let through on the node


def in_force(device: str, passages: Mapping[str, Passage], records: Iterable[Record], uptime: float) -> bool:
    """Whether no container is created with this device before the service says yes.

    ``passages``: by device, the last container that the gate let through since the boot.
    """
    shown = {name: it.at for name, it in passages.items() if it.counts}
    if not shown or uptime - max(shown.values()) > LASTS:
        return False
    past = [it.bypasses.last.at for it in records if it.bypasses.last is not None]
    return not past or shown.get(device, 0.0) > max(past)


def unasked(record: Record, facts: Facts, passages: Mapping[str, Passage]) -> tuple[str, ...]:
    """The pods that use the device, and that its gate did not let through.

    Empty if the plugin may have given the device without its gate, because the gate let no container of the node
    through before that. Empty on a device that was granted until a release, too: the service never defers such a
    device, and several pods may share it. After a reboot, the record must be distrusted first: its times are of
    another boot.
    """
    if not passages or not facts.holders or record.tenancy.until_release:
        return ()
    if record.incarnation.boot_id != facts.incarnation.boot_id:
        return ()
    passage, grant = passages.get(record.device.uuid), record.tenancy.grant
    if passage is None and (grant is None or grant.at.uptime < min(it.at for it in passages.values())):
        return ()
    known: set[str | None] = set(record.bypasses.pods)  # they are on record
    if passage is not None and passage.at >= record.scrubs.proven_at:  # after a proof, each container has to ask again
        known.add(passage.pod)
    if record.tenancy.ended is not None:  # since the last proof
        known.add(record.tenancy.last_owner)
    owner = record.tenancy.owner
    if owner is not None and owner.name:  # only the gate gives a name
        known.add(owner.container)
    return tuple(sorted({holder.container for holder in facts.holders if holder.container is not None} - known))


def needs_assignment(record: Record, facts: Facts) -> bool:
    """Whether only the kubelet's checkpoint can tell if one of these pods was given the device."""
    return any(not _admitted(record, pod) for pod in facts.unasked)


def past_gate(record: Record, facts: Facts) -> ev.PastGate | None:
    """A pod that was given the device has a container on it, and the container runtime did not ask.

    If the checkpoint cannot be read, each such pod counts.
    """
    for pod in facts.unasked:
        if _admitted(record, pod) or facts.assigned_pods is None or pod in facts.assigned_pods:
            return ev.PastGate(pod, _unproven(record, facts, pod))
    return None


def _admitted(record: Record, pod: str) -> bool:
    owner = record.tenancy.owner
    return owner is not None and owner.container == pod and not owner.unannounced


def _unproven(record: Record, facts: Facts, pod: str) -> str:
    """Why the device was not proven clean when this pod came; empty: it was.

    A use that the record does not know says nothing here: it may be the use by this pod.
    """
    if isinstance(ended := proof.ended(record, facts), ev.Distrusted):
        return ended.why
    match record.state:
        case State.CLEAN:
            return ""
        case State.GRANTED | State.IN_USE:
            grant, owner = record.tenancy.grant, record.tenancy.owner
            if grant is None or grant.receipt is None:
                return "it was handed out without a proof"
            another = owner is not None and (owner.container != pod or owner.crowded)
            return "another pod had used it" if another else ""
        case State.UNKNOWN | State.DIRTY | State.SCRUBBING | State.QUARANTINED:
            return f"it was {record.state.words}"
