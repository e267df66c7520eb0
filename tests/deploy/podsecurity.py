"""The Pod Security Standards, as rules: which of them does a container, with its pod, break?

From the standards' own text: baseline keeps known ways up shut, restricted is what a hardened pod keeps as well. A rule
of baseline that restricted only tightens stands once under each, so that a table shows which of the two is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Object = dict[str, Any]
Rule = Callable[[Object, Object], bool]

SAFE_CAPABILITIES = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def setting(pod: Object, container: Object, name: str) -> Any:  # noqa: ANN401 - any field
    """A field of the security context; the container's counts before the pod's."""
    both = (container.get("securityContext", {}), pod.get("securityContext", {}))
    return next((context[name] for context in both if name in context), None)


def _capabilities(container: Object, which: str) -> set[str]:
    return set(container.get("securityContext", {}).get("capabilities", {}).get(which, ()))


def _type(pod: Object, container: Object, profile: str) -> str:
    return str((setting(pod, container, profile) or {}).get("type", ""))


def _mounted(pod: Object, container: Object) -> list[Object]:
    names = {it["name"] for it in container.get("volumeMounts", ())}
    return [volume for volume in pod.get("volumes", ()) if volume["name"] in names]


BASELINE: dict[str, Rule] = {
    "host namespaces": lambda pod, _: any(pod.get(it) for it in ("hostNetwork", "hostPID", "hostIPC")),
    "privileged": lambda pod, it: bool(setting(pod, it, "privileged")),
    "capabilities": lambda _, it: not _capabilities(it, "add") <= SAFE_CAPABILITIES,
    "hostPath volumes": lambda pod, it: any("hostPath" in volume for volume in _mounted(pod, it)),
    "host ports": lambda _, it: any(port.get("hostPort") for port in it.get("ports", ())),
    "AppArmor": lambda pod, it: _type(pod, it, "appArmorProfile") == "Unconfined",
    "SELinux": lambda pod, it: _type(pod, it, "seLinuxOptions") not in SELINUX_TYPES,
    "/proc mount type": lambda pod, it: setting(pod, it, "procMount") not in (None, "Default"),
    "seccomp": lambda pod, it: _type(pod, it, "seccompProfile") == "Unconfined",
    "sysctls": lambda pod, _: bool(pod.get("securityContext", {}).get("sysctls")),
}
RESTRICTED: dict[str, Rule] = {
    "volume types": lambda pod, it: any(not VOLUMES & volume.keys() for volume in _mounted(pod, it)),
    "privilege escalation": lambda pod, it: setting(pod, it, "allowPrivilegeEscalation") is not False,
    "running as non-root": lambda pod, it: setting(pod, it, "runAsNonRoot") is not True,
    "running as user 0": lambda pod, it: setting(pod, it, "runAsUser") == 0,
    "seccomp profile": lambda pod, it: _type(pod, it, "seccompProfile") not in {"RuntimeDefault", "Localhost"},
    "drop all capabilities": lambda _, it: "ALL" not in _capabilities(it, "drop"),
    "add no capabilities": lambda _, it: not _capabilities(it, "add") <= {"NET_BIND_SERVICE"},
}


def broken(pod: Object, container: Object) -> Iterator[tuple[str, str]]:
    """The level and the name of each rule that a container breaks. A volume that it does not mount is not its own."""
    for level, rules in (("baseline", BASELINE), ("restricted", RESTRICTED)):
        yield from ((level, name) for name, breaks in rules.items() if breaks(pod, container))
