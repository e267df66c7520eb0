"""``make machine ARGS=--slurm``: Debian's Slurm with GRES, and a judge who compares what jobs saw with the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tests.machine import vm
from tests.machine.progress import say

GPUS = 4
MANY = 100
STEPS = (
    "prepare", "many {many}", "cancelled", "killed", "out_of_time", "leaves_a_process", "service_down", "service_hung",
    "service_restarted_under_a_job", "health_check", "sick_gpu", "before_reboot", "after_reboot",
)  # fmt: skip


def campaign(arguments: Sequence[str]) -> list[int]:
    """An exit code for each step, and for the judge."""
    many = int(arguments[0]) if arguments else MANY
    with vm.booted() as machine:
        machine.bring_checkout()
        machine.install(GPUS)
        codes = []
        for step in STEPS:
            if step == "after_reboot":
                machine.reboot()
            named = step.format(many=many)
            codes.append(machine.tries(named, f"tests/machine/slurm.sh {named}"))
        faults = list(judge(machine))
        for fault in faults:
            say(fault)
        return [*codes, int(bool(faults))]


def judge(machine: vm.Machine) -> Iterator[str]:
    """What is wrong: a job that began on a GPU without a proof of its own, or that met or lost bytes."""
    rows = [json.loads(line) for line in machine.output("/opt/autoclave/bin/autoclave ledger export").splitlines()]
    devices = {row["body"]["device"]["index"]: row["device"] for row in rows if row["kind"] == "discovered"}
    began = 0
    for line in machine.output("cat /srv/jobs/said").splitlines():
        when, job, _, *words = line.split()
        if words[0] != "begins":
            if words[0] != "ends":
                yield f"job {job} {' '.join(words)}"
            continue
        began += 1
        for gpu in words[1:]:
            until = [row for row in rows if row["device"] == devices[int(gpu)] and row["wall"] <= float(when)]
            granted = max((at for at, row in enumerate(until) if row["kind"] == "granted"), default=0)
            if not until or until[granted]["body"].get("grant", {}).get("owner") != job:
                yield f"job {job} began on GPU {gpu}, which was not granted to it"
            earlier = [row["kind"] for row in until[:granted] if row["kind"] in ("granted", "scrub-passed")]
            if earlier[-1:] != ["scrub-passed"]:
                yield f"job {job} began on GPU {gpu}, which was not proven since its last job"
    say(f"the judge has compared {began} starts of jobs with {len(rows)} rows")
