"""What the next pod saw on the real node, by its plugin: ``python -m benchmarks.remnant``.

It reads what ``make cluster ARGS='-p no:randomly -k remnant --remnant-rounds 4'`` has left, and writes ``remnant.md``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.figures import quantile
from benchmarks.nvml_questions import wrapped
from remnant.result_files import WORDS
from remnant.round_result import Ending

FOUND = Path("build/cluster/remnant")
COMMAND = "make cluster ARGS='-p no:randomly -k remnant --remnant-rounds 4'"
GATE = """
| driver | what the next process finds |
|---|---|
| clears memory that is freed | no remnant; *held* if a process is left behind |
| clears nothing | all of it |
| leaves one page of 4 KiB | 4,096 bytes |
| clears late, after the first look | *not zero*, and no word: what was seen first counts |
| keeps shared memory | all of it, in shared memory |
| keeps 8 KiB of pinned memory of the host | 8,192 bytes |
| refuses memory of `cuMemCreate`, at each of its steps | what it leaves, in memory of `cuMemAlloc` |
"""


def _text(results: dict[str, dict[str, Any]]) -> str:
    first = next(iter(results.values()))
    endings = [Ending(each) for each in dict.fromkeys(cell["ending"] for cell in first["cells"])]
    rounds = max(cell["rounds"] for cell in first["cells"])
    looks = [_row("plugin", *(WORDS[each] for each in endings)), f"|{'---|' * (1 + len(endings))}"]
    times = [*looks]
    for arm, result in results.items():
        verdicts = {cell["ending"]: cell["verdict"] for cell in result["cells"]}
        taken = {each: [it["seconds"] for it in result["rounds"] if it["ending"] == each.value] for each in endings}
        looks.append(_row(arm, *(verdicts[each.value] for each in endings)))
        times.append(_row(arm, *(f"{quantile(taken[each], 0.5):.1f} s" for each in endings)))
    return f"""# What the next container sees, on simulated GPUs

**Simulated**: the GPU is a file of 64 MiB, the driver is a stand-in, and it clears nothing unless the table says so.
NVIDIA's driver clears memory that is freed: see [what was found on GPUs](../remnant.md#measured). So these figures say
what the test finds, and what a plugin does. They say nothing about NVIDIA's driver.

## On a real node

Taken {first["began"]} with `{COMMAND}` and `python -m benchmarks.remnant`: Kubernetes 1.37, containerd, `kubectl`, pods
of the image `cuda12`, and NVIDIA's own plugin. {rounds} rounds of each ending, in memory. All pods asked for all GPUs
of the node.

{chr(10).join(looks)}

*Held*: the first container still runs while the next one begins. A pod that is deleted by force is gone for the
scheduler at once, and its container lives on for up to two seconds. No plugin but one that looks for processes can
notice that. Autoclave lets the next pod wait.

From the end of the first container until the next one has looked, p50. Most of it is the start of a pod, and of Python
in it; other work ran on the two cores of the machine:

{chr(10).join(times)}

## Other drivers

By the tests in `tests/remnant`, with two processes and a stand-in for the driver:
{GATE}
## What Autoclave does not change

* A container that starts again in its pod finds its own data: a pod keeps its GPU, and nothing is wiped
  (`tests/cluster/test_handover.py`).
* Under the policy `observe`, nothing is cleared.
"""


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description="Write what the next pod saw on the real node, by its plugin.")
    parser.add_argument("--output", type=Path, default=Path("docs/measurements"))
    parser.add_argument("found", type=Path, nargs="?", default=FOUND, help=f"the results; default: {FOUND}")
    options = parser.parse_args()
    results = {file.parent.name: json.loads(file.read_text()) for file in options.found.glob("*/result.json")}
    if not results:
        parser.error(f"no results in {options.found}: run {COMMAND}")
    (options.output / "remnant.md").write_text(
        wrapped(_text(dict(sorted(results.items(), key=lambda it: it[1]["began"]))))
    )


if __name__ == "__main__":
    main()
