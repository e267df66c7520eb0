"""Write what NVIDIA's ai-cloud-validation reads for SEC21-05: the memory of GPUs is sanitised between tenants.

kubectl autoclave receipt list -A --since 30d -o jsonl > handovers.jsonl && python3 sec21_05.py handovers.jsonl

The fields are those that the class BmGpuMemorySanitizationCheck demands, as of commit 1207cb75 of
github.com/NVIDIA/ai-cloud-validation (isvtest/src/isvtest/validations/sanitization.py). There is one record, a
"machine", for each GPU or MIG slice that had a tenant. A GPU counts as sanitised only if each of its hand-overs in the
list was proven and has no note. A simulated GPU never does, and a list with one is no success: `simulated` counts them.
Exit code: 0 written, 1 the list cannot be read, 6 written, and a GPU is simulated.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

Handover = dict[str, Any]
TRANSITIONS = 20  # the newest ones, as NVIDIA's own script for NICo writes them
SIMULATED = 6  # exit code
FIELDS = {
    "node": str, "device": str, "began": str, "ended": (str, type(None)), "result": str, "note": str, "receipt": str,
    "simulated": bool,
}  # fmt: skip


def records(handovers: list[Handover]) -> list[dict[str, Any]]:
    """One record for each GPU of each node."""
    by_gpu: dict[str, list[Handover]] = {}
    for handover in sorted(handovers, key=lambda handover: handover["began"]):
        by_gpu.setdefault(f"{handover['node']}/{handover['device']}", []).append(handover)
    return [_record(gpu, tenancies) for gpu, tenancies in sorted(by_gpu.items())]


def _record(gpu: str, tenancies: list[Handover]) -> dict[str, Any]:
    clean = [handover["result"] == "proven" and not handover["note"] for handover in tenancies]
    last = tenancies[-1]
    in_use, simulated = last["ended"] is None, any(handover["simulated"] for handover in tenancies)
    steps = [step for proven in clean for step in (*(["sanitizing"] if proven else []), "available", "in_use")]
    return {
        "machine_id": gpu,
        "status": "in_use" if in_use else "unknown",  # the list does not say whether the GPU is offered again
        "available": False,
        "in_use": in_use,
        "has_gpu": True,
        "served_tenant": True,
        "sanitized": all(clean) and not simulated,
        "stale_tenant_binding": any(before["ended"] is None for before in tenancies[:-1]),
        "transitions": steps[-TRANSITIONS:],
        # Two fields of our own, which NVIDIA's check ignores.
        "receipts": [handover["receipt"] for handover in tenancies],
        "simulated": simulated,
    }


def parsed(number: int, line: str) -> Handover:
    """The hand-over in a line of the list; ValueError says what is wrong with it."""
    wrong = f"line {number} is no hand-over: give the output of `autoclave receipt list -o jsonl`"
    try:
        handover = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(wrong) from error
    if not isinstance(handover, dict):
        raise ValueError(wrong)  # noqa: TRY004 - the same to the caller
    for field, kinds in FIELDS.items():
        if not isinstance(handover.get(field, ...), kinds):
            raise ValueError(f"{wrong}; its field {field} is missing, or of another kind")  # noqa: TRY004 - the same
    return handover


def main() -> int:
    """Read the list, and print the records."""
    parser = argparse.ArgumentParser(description="Write the JSON that NVIDIA's test SEC21-05 reads.")
    parser.add_argument("file", type=Path, help="the output of `autoclave receipt list -o jsonl`")
    parser.add_argument("--site", default="", help="the name of the site in the output")
    arguments = parser.parse_args()
    answer = {"success": False, "platform": "autoclave", "site_id": arguments.site, "machines_checked": 0}
    of_simulated = 0
    try:
        lines = arguments.file.read_bytes().decode(errors="replace").splitlines()
        machines = records([parsed(number, line) for number, line in enumerate(lines, 1)])
        if not machines:
            raise ValueError("it has no hand-over")  # noqa: TRY301 - as an unreadable one, it proves nothing
        of_simulated = sum(machine["simulated"] for machine in machines)
        answer |= {"success": not of_simulated, "machines_checked": len(machines), "simulated": of_simulated}
        answer |= {"machines": machines}
        if of_simulated:
            answer["error"] = (
                f"{of_simulated} of {len(machines)} GPUs are simulated: the list says nothing about hardware"
            )
    except OSError as error:
        answer["error"] = f"cannot read {arguments.file}: {error.strerror}"
    except ValueError as error:
        answer["error"] = f"cannot read {arguments.file}: {error}"
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    return SIMULATED if of_simulated else 0 if answer["success"] else 1


if __name__ == "__main__":
    sys.exit(main())
