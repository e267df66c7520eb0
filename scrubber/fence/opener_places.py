"""Tells where programs run, and which of them the policy lets open a device at any time."""

from __future__ import annotations

from ground.errors import InvalidRequest
from scrubber.core.model import NOWHERE, Holder
from scrubber.fence.ignored import Sources
from scrubber.node.cgroup_tree import GroupPlace


class Places:
    """Those of pods, units and processes."""

    def __init__(self, sources: Sources, service: int) -> None:
        """``service``: the control group of this service."""
        self._sources = sources
        self._service = service

    def demand_tenant(self, group: int) -> None:
        """Refuse a control group that the devices of a job cannot be open to. Raises InvalidRequest."""
        place, own = self._sources.place(group), self._sources.place(self._service)
        if place is None or own is None:
            raise InvalidRequest("cannot open a device to the control group that was named: it is gone")
        if not place.name or group in own.groups:
            raise InvalidRequest("cannot open a device to the control group that was named: it holds the scrub service")

    def pod_name(self, uid: str) -> str:
        """NAMESPACE/NAME of a pod; empty: it is not known."""
        return self._sources.pod_name(uid)

    def exempts(self, uuid: str, pod: str, place: str, *, before: bool = False) -> bool:
        """Whether the policy in force lets a pod, as NAMESPACE/NAME, or a unit at this place open the device.

        ``before``: whether a policy let it in when it asked. The control group of a unit that has ended is gone: the
        unit is exempt if it was, and the policy in force still names it.
        """
        terms = self._sources.terms(uuid)
        if pod.partition("/")[0] in terms.namespaces:
            return True
        if not place.startswith("/"):  # a container, or a pod without a name
            groups = self._sources.groups(place) if before and place not in NOWHERE else ()
            return any(found.groups & terms.exempt for found in map(self._sources.place, groups) if found is not None)
        if before and terms.names(place):
            return True
        names = {found.name for found in map(self._sources.place, terms.exempt) if found is not None and found.name}
        return any(place == name or place.startswith(f"{name}/") for name in names)

    def exempts_process(self, uuid: str, holder: Holder) -> bool | None:
        """Whether the policy in force lets a process of the host open the device, by its control group.

        So the child of an exempt program is exempt too. None: its group is not known, or it is in a container.
        """
        place = self.place_of(holder)
        return None if place is None else bool(place.groups & self._sources.terms(uuid).exempt)

    def place_of(self, holder: Holder) -> GroupPlace | None:
        """The control group of a process of the host. None: it is not known, or the process is in a container."""
        group = self._sources.group_of(holder) if holder.container is None else None
        place = self._sources.place(group) if group is not None else None
        return place if place is not None and place.container is None else None
