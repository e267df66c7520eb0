"""``make machine``: try what needs a machine as users have it, with systemd and version 2 of control groups.

Without a command it runs ``CHECKS``; with one, that command, as root in the checkout. A single word is a line of the
shell. ``--cuts``, ``--slurm`` and ``--node`` are campaigns of their own. The last line counts what passed. The exit
code is 0 if all did, that of the command if there is one, 3 if there is no machine, and 130 after Ctrl-C.
"""

from __future__ import annotations

import shlex
import sys

from tests.machine import building, cuts, node, slurm, vm

NO_MACHINE, INTERRUPTED = 3, 130
_PYTHON = ".venv/bin/python"
_CHECK = "tests/machine/checks.sh"
_ORDINARY = "runuser -u ordinary --"
GPUS = 2
INSTALL, REBOOT = "install by the lines of the page", "reboot"
CHECKS = {
    "only control groups of version 2": 'test "$(findmnt -no FSTYPE /sys/fs/cgroup)" = cgroup2',
    "make demo, as an ordinary user": f"{_ORDINARY} make demo",
    # The whole gate takes hours where the processor is emulated.
    "make test, as an ordinary user: the core and the ledger": (
        f"{_ORDINARY} make test JOBS=2 ARGS='tests/core/test_acquire.py tests/ledger/test_tree.py'"
    ),
    "control groups of a node": (
        f"{_PYTHON} -m tests.cluster.isolated {_PYTHON} -m pytest -q -m cluster tests/cluster/test_isolated.py"
    ),
    "/tmp has nodev": "findmnt -no OPTIONS /tmp | grep -q nodev",
    "tests of what touches the ground, as root": (
        f"{_PYTHON} -m pytest -n 2 -q tests/node/test_cgroups_real.py tests/node/test_bystanders.py "
        "tests/create_gate/test_runc.py tests/observe/test_departures.py"
    ),
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
    "before a reboot": f"{_CHECK} before_reboot",
    REBOOT: f"{_CHECK} after_reboot",
}


def main(arguments: list[str]) -> int:
    """The exit code."""
    accelerator = vm.EMULATED
    if arguments[:1] == ["--kvm"]:
        accelerator, arguments = vm.KVM, arguments[1:]
    try:
        building.demand()
        match arguments:
            case ["--cuts", *rest]:
                codes = cuts.campaign(accelerator, rest)
            case ["--slurm", *rest]:
                codes = slurm.campaign(accelerator, rest)
            case ["--node", *rest]:
                codes = node.campaign(accelerator, rest)
            case _:
                given = arguments[0] if len(arguments) == 1 else shlex.join(arguments)
                with vm.booted(accelerator) as machine:
                    machine.bring_checkout()
                    commands = {given: given} if given else CHECKS
                    codes = [_try(machine, name, command) for name, command in commands.items()]
    except building.NoMachineError as error:
        print(f"cannot have a machine: {error}", file=sys.stderr)  # noqa: T201 - the answer to a person
        return NO_MACHINE
    except KeyboardInterrupt:  # QEMU ended with the machine
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
