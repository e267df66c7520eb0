"""``make machine ARGS=--cluster``: the tests of a real node in the machine, behind a fence.

The machine is the node: systemd, version 2 of control groups alone, and a runtime and a kubelet that are units. The
control plane runs beside the machine, in a network of its own. None of it needs root.
"""

from __future__ import annotations

import os
import shlex
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import isolated, programs
from tests.cluster.programs import WHOLE_ADDRESS, WHOLE_NODE, WHOLE_PODS
from tests.machine import building, vm

BUILT = building.ROOT / "build/node"
IMAGE = building.ROOT / "build/image.tar"
INSIDE = "/host/programs"  # in the machine, which has no network
LOGS = building.FOLDER / "cluster"
PATIENCE = 600  # seconds: the machine has one processor, whose system calls are slow
TAP, OUTSIDE = "tap0", "198.51.100.1"  # the network between the machine and the control plane
PARTS = {  # the ways to install
    "plugin": "fence fence_lets_in handover restarts quarantine receipts waiting",
    "in-front": "in_front",
    "claims": "claims",
    "vendor": "vendor",
    "chart": "installed installed_in_front installed_dra installed_gate",
}
# The network of the control plane. Its files below /run are as short-lived as its processes.
LINK = f"""
ip tuntap add {TAP} mode tap user 0
ip address add {OUTSIDE}/24 dev {TAP}
ip link set {TAP} up
ip route add {WHOLE_PODS} via {WHOLE_ADDRESS}
"""
_ENTER = f"""
mount -t tmpfs node {isolated.RUN}
mkdir {isolated.STATE}
ip link set lo up
ip address add {isolated.SERVICE}/32 dev lo
{LINK}
exec "$0" "$@"
"""
# What the machine keeps of its node: its address, and the way to the API server. It boots again in the same process on
# this machine, which must let go of the network first. The kubelet reads the speed of the processor, of which user-mode
# Linux says nothing.
_PREPARE = f"""set -e
printf '[Match]\\nName=vec0\\n[Network]\\nAddress={WHOLE_ADDRESS}/24\\n[Route]\\n' > /etc/systemd/network/vec.network
printf 'Destination={isolated.SERVICE}/32\\nGateway={OUTSIDE}\\n' >> /etc/systemd/network/vec.network
mkdir -p /usr/lib/systemd/system-shutdown
printf '#!/bin/sh\nip link set vec0 down\n' > /usr/lib/systemd/system-shutdown/network
chmod +x /usr/lib/systemd/system-shutdown/network
sed 's/^model name.*/&\\ncpu MHz\\t\\t: 2000.000/' /proc/cpuinfo > /srv/cpuinfo
echo '/srv/cpuinfo /proc/cpuinfo none bind 0 0' >> /etc/fstab
echo '/srv/node {isolated.STATE} none bind,x-mount.mkdir 0 0' >> /etc/fstab
mkdir /srv/node
systemctl daemon-reload
systemctl enable -q --now systemd-networkd
until ip route | grep -q {isolated.SERVICE}; do sleep 0.2; done
mount -a
"""


def campaign(arguments: Sequence[str]) -> list[int]:
    """An exit code for each of ``PARTS``, for those that are named, or for what else pytest is asked to run."""
    tests = {"the tests that were asked for": shlex.join(arguments)}
    if set(arguments) <= PARTS.keys():
        tests = {
            name: " ".join(f"tests/cluster/test_{each}.py" for each in PARTS[name].split())
            for name in arguments or PARTS
        }
    if not isolated.STATE.is_dir():
        if reason := programs.absent(BUILT, programs.ALL, programs.PACKAGES_OF_CONTROL_PLANE):
            raise building.NoMachineError(reason)
        building.demand([vm.KERNEL])
        entering = ["unshare", "--map-root-user", "--mount", "--net", "sh", "-ec", _ENTER]
        os.execvp(entering[0], [*entering, sys.executable, "-m", "tests.machine", "--cluster", *arguments])  # noqa: S606 - no shell is wanted
    LOGS.mkdir(parents=True, exist_ok=True)
    control_plane = programs.ControlPlane(BUILT, LOGS)
    control_plane.up()
    try:
        with a_node() as machine:
            codes = [_try(machine, *each) for each in tests.items()]
            _keep_logs(machine)
            return codes
    finally:
        control_plane.down()


@contextmanager
def a_node() -> Iterator[vm.Machine]:
    """A machine that is a node, of which neither runtime nor kubelet run yet. The control plane runs."""
    with vm.booted(more=[f"vec0:transport=tap,ifname={TAP},depth=128"]) as machine:
        machine.bring_checkout()
        (given := machine.folder / "programs").mkdir()
        for path in filter(Path.exists, (*BUILT.iterdir(), IMAGE)):
            (given / path.name).hardlink_to(path)
        programs.kubeconfig(mine := given / "kubeconfig", WHOLE_NODE)
        same = (programs.CERTIFICATE, programs.KUBECONFIG)
        if machine.run(_PREPARE) != 0:
            raise building.NoMachineError("it cannot become a node")
        for place, path in (*zip(same, same, strict=True), (programs.NODE_KUBECONFIG, mine)):
            (given / "file").write_bytes(path.read_bytes())
            machine.run(f"cat {INSIDE}/file > {place}")
        yield machine


def _try(machine: vm.Machine, name: str, tests: str) -> int:
    command = f"AUTOCLAVE_TESTS_WAIT={PATIENCE} .venv/bin/python -m pytest -v -m cluster -p no:randomly"
    command += f" --timeout {5 * PATIENCE}"  # of a test; all of its waits together
    places = f"--programs {INSIDE} --image {INSIDE}/{IMAGE.name} --cuda-image {INSIDE}/none"
    return machine.tries(name, f"{command} {places} --durations 0 --durations-min 1 {tests}")


def _keep_logs(machine: vm.Machine) -> None:
    if machine.run(f"tar -C {building.INSIDE}/build/cluster -c -f /host/logs.tar .") == 0:
        with tarfile.open(machine.folder / "logs.tar") as archive:
            archive.extractall(LOGS / "node", filter="data")
