"""``make machine``: try what needs a machine as users have it, with systemd and version 2 of control groups.

Without a command it runs ``CHECKS``; with one, that command, as root in the checkout. A single word is a line of the
shell. ``CAMPAIGNS`` have modules of their own. The last line counts what passed. The exit code is 0 if all did, that of
the command if there is one, 3 if there is no machine, and 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib import import_module

from tests.machine import building, kernels, vm

NO_MACHINE, INTERRUPTED = 3, 130
_PYTHON = ".venv/bin/python"
_CHECK = "tests/machine/checks.sh"
_ORDINARY = "runuser -u ordinary --"
GPUS = 2
CAMPAIGNS = ("--kernels", "--cuts", "--slurm", "--cluster", "--node")
NEED_ENVIRONMENT = ("--cuts", "--node")  # the service of this checkout judges, or runs beside
INSTALL, REBOOT = "install by the lines of the page", "reboot"
CHECKS = {
    "only control groups of version 2": 'test "$(findmnt -no FSTYPE /sys/fs/cgroup)" = cgroup2',
    "make demo, as an ordinary user": f"{_ORDINARY} make demo",
    # The whole gate takes an hour where each call of the kernel is slow.
    "make test, as an ordinary user: the core and the ledger": (
        f"{_ORDINARY} make test JOBS=1 ARGS='tests/core/test_acquire.py tests/ledger/test_tree.py'"
    ),
    # Of its tests, the one that asks for cpuset has no answer: one processor has no such controller.
    "a machine of its own for a node": (
        f"{_PYTHON} -m tests.cluster.isolated {_PYTHON} -m pytest -q -m cluster -k sees_no "
        "tests/cluster/test_isolated.py"
    ),
    "/tmp has nodev": "findmnt -no OPTIONS /tmp | grep -q nodev",
    "tests of what touches the ground, as root": (
        f"{_PYTHON} -m pytest -n 0 -q tests/node/test_cgroups_real.py tests/node/test_bystanders.py "
        "tests/observe/test_departures.py"
    ),
    "tests of the fence, as root": kernels.CHECKS["fence"],
    INSTALL: f"{_CHECK} installed",
    "the unit's rights are bounded": f"{_CHECK} security",
    "stop and start": f"{_CHECK} stops_and_starts",
    "killed in mid-scrub": f"{_CHECK} killed_in_mid_scrub",
    "the watchdog ends a service that stands still": f"{_CHECK} watchdog",
    "wrong settings are reported once": f"{_CHECK} wrong_settings",
    "reload of a policy": f"{_CHECK} reload",
    "hooks of a CI runner": f"{_CHECK} ci_hooks",
    "a container of docker": f"{_CHECK} containers docker",
    "a container of podman": f"{_CHECK} containers podman",
    "a hand-over, the fence refuses": f"{_CHECK} refuses",
    "before a reboot": f"{_CHECK} before_reboot",
    REBOOT: f"{_CHECK} after_reboot",
}


def main(arguments: list[str]) -> int:
    """The exit code."""
    try:
        match arguments:
            case [name, *rest] if name in CAMPAIGNS:
                if name in NEED_ENVIRONMENT and sys.prefix == sys.base_prefix:
                    building.demand([vm.KERNEL])
                    subprocess.run(["make", "-s", ".venv/.ready"], cwd=building.ROOT, check=True)
                    os.execv(_PYTHON, [_PYTHON, "-m", "tests.machine", *arguments])  # noqa: S606 - no shell is wanted
                codes: list[int] = import_module(f"tests.machine.{name.removeprefix('--')}").campaign(rest)
            case _:
                given = arguments[0] if len(arguments) == 1 else shlex.join(arguments)
                with vm.booted() as machine:
                    machine.bring_checkout()
                    commands = {given: given} if given else CHECKS
                    codes = [_try(machine, name, command) for name, command in commands.items()]
    except building.NoMachineError as error:
        print(f"cannot have a machine: {error}", file=sys.stderr)  # noqa: T201 - the answer to a person
        return NO_MACHINE
    except KeyboardInterrupt:  # the machine has ended with its context
        print("interrupted", file=sys.stderr)  # noqa: T201 - the answer to a person
        return INTERRUPTED
    print(f"{codes.count(0)} passed, {len(codes) - codes.count(0)} failed")  # noqa: T201 - the closing line
    return max(codes)


def _try(machine: vm.Machine, name: str, command: str) -> int:
    if name == INSTALL:
        machine.install(GPUS)
    elif name == REBOOT:
        machine.reboot()
    return machine.tries(name, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
