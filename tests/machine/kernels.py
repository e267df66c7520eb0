"""``make machine ARGS=--kernels``: what the fence stands on, as a table of kernels and checks.

Autoclave is installed once, by the lines of the page; then each kernel boots on the same disk. The table goes to
stdout: docs/nvidia.md has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.machine import building, vm
from tests.machine.progress import say

# With a /tmp of its own: nobody opens a device node in the machine's, which has nodev. In a control group of their own:
# below a unit of systemd, whoever asks has the name of that unit.
_TESTS = (
    "unshare --mount sh -ec 'mount -t tmpfs own /tmp; mkdir -p /sys/fs/cgroup/tests; "
    "echo $$ > /sys/fs/cgroup/tests/cgroup.procs; "
    "exec .venv/bin/python -m pytest -q -n 0 -p no:randomly --timeout 120 tests/{}'"
)
CHECKS = {
    "fence": _TESTS.format("fence"),
    "rights of the chart": _TESTS.format("deploy/test_fence_rights.py"),
    "hand-over": "tests/machine/checks.sh refuses",
}
_SAYS = "journalctl -q -o cat -u autoclave-scrubber -b | grep -m 1 fence"


def campaign(versions: Sequence[str]) -> list[int]:
    """An exit code for each kernel and check."""
    versions = versions or sorted(building.KERNELS, key=lambda version: [int(part) for part in version.split(".")])
    if unknown := [version for version in versions if version not in building.KERNELS]:
        raise building.NoMachineError(f"no kernel {', '.join(unknown)}; there are {', '.join(building.KERNELS)}")
    codes: dict[str, list[int]] = {}
    with vm.booted(versions) as machine:
        machine.bring_checkout()
        machine.install(1)
        for version in versions:
            if version != versions[0]:
                machine.run("systemctl stop autoclave-scrubber; sync")
                machine.cut_power()
                machine.start(version)
            release = machine.output("uname -r").strip()
            codes[release] = [machine.tries(f"Linux {release}, {name}", check) for name, check in CHECKS.items()]
            if any(codes[release]):
                say(f"Linux {release}, the service says")
                machine.run(_SAYS)
    rows = [["Linux", *CHECKS], ["---"] * (len(CHECKS) + 1)]
    rows += [[release, *("failed" if code else "passed" for code in row)] for release, row in codes.items()]
    for row in rows:
        print(f"| {' | '.join(row)} |")  # noqa: T201 - the table
    return [code for row in codes.values() for code in row]
