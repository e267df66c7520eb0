"""Write the tables of figures into README.md, from the records of GPUs and of the service.

python -m benchmarks.readme README.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks import on_gpus, service_page
from benchmarks.on_gpus import SOON, TABLES, Row

PART = re.compile(r"(<!-- figures: begin -->\n).*?(<!-- figures: end -->)", re.DOTALL)
_CLEAN, _PREPARE, _NEXT, *_ = TABLES["hand-over"]
GPUS: dict[str, tuple[Row, ...]] = {
    "`Allocate` and `PreStartContainer` of a clean GPU": (_CLEAN, _PREPARE),
    "from the end of a container to the start of the next pod's, scrub included": (_NEXT,),
    "the wait in `Allocate`, as part of that time": (Row("", "pods", f"{SOON}: Allocate"),),
    "overwritten and read back, of what programs can allocate": tuple(
        row for row in TABLES["reach"] if row.words.startswith("covered")
    ),
}
SERVICE: dict[str, tuple[str, ...]] = {
    "`Allocate` on a clean GPU, p50": ("autoclave, 8 devices: Allocate on a CLEAN device, p50",),
    "`Allocate` of a Python plugin that does nothing, p50": ("do-nothing Python plugin, 8 devices: Allocate, p50",),
    "from the end of a pod's last process to a clean GPU of 64 MiB, p50": (
        "a tenant's last process gone to CLEAN, 4 devices of 64MiB: p50",
    ),
    "from the end of a pod's last process to a clean GPU of 64 MiB, while the other GPUs train": (
        "a tenant's last process gone to CLEAN, 4 devices of 64MiB, 136 working processes of 3000 mappings: p50",
    ),
    "the idle service": ("idle, 8 devices: processor", "idle, 8 devices: resident memory"),
    "the idle plugin": ("autoclave, 8 devices: processor, idle", "autoclave, 8 devices: resident memory"),
}


def figures() -> str:
    """Both tables, with their headings."""
    cards = on_gpus.cards()
    on_cards = [
        (words, *(", ".join(row.median(records) for row in rows) for records in cards.values()))
        for words, rows in GPUS.items()
    ]
    on_cards.append(("when the hand-over was measured", *(on_gpus.provenance(it, "pods") for it in cards.values())))
    told = service_page.figures()
    of_service = [
        (words, *(", ".join(filter(None, cells)) for cells in zip(*(told[it].shown[1:] for it in names), strict=True)))
        for words, names in SERVICE.items()
    ]
    return f"""\
Medians on GPUs whose memory the previous pod had filled ([all figures](docs/measurements/gpus.md)):

{on_gpus.table(("what", *cards), *on_cards)}

Measured on two CPU cores with simulated GPUs ([all figures, and the aims that are
missed](docs/measurements/service.md)):

{on_gpus.table(("what", "measured", "aim"), *of_service)}

"""


def main() -> None:
    """Write them into the page that is named."""
    page = Path(sys.argv[1])
    text = page.read_text(encoding="utf-8")
    page.write_text(PART.sub(lambda found: f"{found[1]}\n{figures()}{found[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
