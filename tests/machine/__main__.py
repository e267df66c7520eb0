"""``make machine``: try what needs a machine as users have it, with systemd and version 2 of control groups.

Without a command it runs ``CHECKS``; with one, that command, as root in the checkout. A single word is a line of the
shell. The last line counts what passed. The exit code is 0 if all did, that of the command if there is one, and 3 if
there is no machine.
"""

from __future__ import annotations

import shlex
import sys

from tests.machine import building, vm
from tests.machine.progress import say

NO_MACHINE = 3
_PYTHON = ".venv/bin/python"
CHECKS = {
    "only control groups of version 2": 'test "$(findmnt -no FSTYPE /sys/fs/cgroup)" = cgroup2',
    "the demo, as an ordinary user": "runuser -u ordinary -- .venv/bin/python -m demo",
    "control groups of a node": (
        f"{_PYTHON} -m tests.cluster.isolated {_PYTHON} -m pytest -q -m cluster tests/cluster/test_isolated.py"
    ),
    "/tmp has nodev": "findmnt -no OPTIONS /tmp | grep -q nodev",
    "device nodes where /tmp has nodev": f"{_PYTHON} -m pytest -q tests/node/test_processes.py -k device_node",
}


def main(arguments: list[str]) -> int:
    """The exit code."""
    accelerator = vm.EMULATED
    if arguments[:1] == ["--kvm"]:
        accelerator, arguments = vm.KVM, arguments[1:]
    given = arguments[0] if len(arguments) == 1 else shlex.join(arguments)
    commands = {given: given} if given else CHECKS
    try:
        building.demand()
        with vm.booted(accelerator) as machine:
            machine.bring_checkout()
            codes = [_try(machine, name, command) for name, command in commands.items()]
            machine.stop()
    except building.NoMachineError as error:
        print(f"cannot have a machine: {error}", file=sys.stderr)  # noqa: T201 - the answer to a person
        return NO_MACHINE
    print(f"{codes.count(0)} passed, {len(codes) - codes.count(0)} failed")  # noqa: T201 - the closing line
    return max(codes)


def _try(machine: vm.Machine, name: str, command: str) -> int:
    say(name)
    code = machine.run(f"cd {building.INSIDE} && {{ {command}\n}}")
    say(f"{name}: {'passed' if code == 0 else f'failed, exit code {code}'}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
