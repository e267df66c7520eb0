"""Devices and a service, as the service reports them, for tests of what is printed."""

from dataclasses import replace

from scrub_api import views
from scrub_api.measurements import Uncovered

NOW = 1_800_000_000.0
RECEIPT = views.ReceiptView(
    id="3dac54cd6a98ac39", path="fast", finished=NOW, covered_bytes=995, allocatable_bytes=1000, residue_bytes=2**20,
    processes_found=2, processes_terminated=1, policy="default/defaults", policy_digest="12", digest="34", previous="",
    driver="simulated 1.0", boot_id="b", steps=(views.StepTime("clear", 0.5), views.StepTime("verify", 0.25)),
)  # fmt: skip
DEEP = replace(
    RECEIPT, path="slow", residue_at=(4096, 8192), uncovered=(Uncovered("own context", 3), Uncovered("unexplained", 2)),
    patterns=("random", "zero"), units=132, units_reached=132, tests=("address", "arithmetic"),
    shared_unreached_bytes=132 * 1024, units_left=("caches", "tensor memory"),
    witness="none: no fence guards it",
)  # fmt: skip
CLEAN = views.DeviceStatus(
    device="GPU-aaaaaaaa-0000", index=0, model="Simulated GPU", state="clean", since=NOW - 300, healthy=True,
    why="clean", memory_bytes=64 * 2**20, numa_node=None, pci_address="", mig=False, receipt=RECEIPT, owner="",
    job=None, quarantine=None, policy_rule="defaults", setback="", driver="simulated 1.0 77",
)  # fmt: skip
QUARANTINE = views.QuarantineStatus(
    "xid", "xid 79 was reported", NOW - 90, "autoclave", 2, False, 45.0, "slow", "clear failed"
)
SICK = replace(
    CLEAN, device="GPU-bbbbbbbb-0000", index=1, state="quarantined", healthy=False, why="quarantined: xid 79",
    receipt=None, numa_node=1, pci_address="0000:3b:00.0", mig=True,
    quarantine=QUARANTINE,
)  # fmt: skip
BUSY = replace(
    CLEAN, device="GPU-cccccccc-0000", index=2, state="scrubbing", why="being scrubbed", receipt=None,
    job=views.JobStatus("j1", "slow", "request", "clear", NOW, 30, 40),
)  # fmt: skip
SERVICE = views.ServiceStatus("0.1.0", "simulated", "default", "/sim", "/state", 7, "ab", "", "", NOW)
