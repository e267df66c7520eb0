"""The metrics of the scrub service: THE TABLE. A stable contract, because dashboards of users read these names.

``gpu`` is the index of a device (``0``, and ``0:1`` for a slice); ``uuid`` is its permanent name.
``autoclave_device_info`` has its other properties. An unknown value has no series: absent is not zero. No label holds a
pod, a process or a receipt. ``docs/metrics.md`` is generated from this table, and tests compare dashboards and alerts
with it.
"""

from __future__ import annotations

from ground.metric_table import Kind, Row, rows

ONE = ("gpu", "uuid")
SECONDS = "seconds"

# A request takes milliseconds, or waits for a scrub. The usual budgets of the hooks are 5 s and 25 s.
ANSWERS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
SCRUBS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
STEPS = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0)
WRITES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 2.0)

# -- the service

BUILD = Row(
    "autoclave_build_info", Kind.INFO, "Version and backend of the scrub service.",
    ("version", "backend"),
)  # fmt: skip
READY = Row("autoclave_ready", Kind.GAUGE, "1 while the service can hand out devices; /readyz says why not.")
POLICY = Row(
    "autoclave_policy_info", Kind.INFO, "Name and content digest of the policy in force.", ("policy", "digest")
)
POLICY_FAULT = Row(
    "autoclave_policy_fault", Kind.GAUGE, "1 while the policy file has faults and the previous policy stays in force."
)
CONCESSIONS = Row(
    "autoclave_policy_concessions",
    Kind.GAUGE,
    "Number of promises that the policy in force gives up; `autoclave doctor` lists them.",
)
LEDGER_ROWS = Row("autoclave_ledger_rows", Kind.GAUGE, "Number of the newest row of the ledger.")
LEDGER_FAULT = Row(
    "autoclave_ledger_fault", Kind.GAUGE, "1 while the ledger cannot be written and no device is handed out."
)
LEDGER_VERIFIED = Row(
    "autoclave_ledger_verified_timestamp_seconds", Kind.GAUGE, "Time of the last full verification of the ledger.",
    unit=SECONDS,
)  # fmt: skip
LEDGERS_SET_ASIDE = Row(
    "autoclave_ledgers_set_aside",
    Kind.GAUGE,
    "Number of damaged ledgers that were set aside in the state directory.",
)
LEDGER_APPEND = Row(
    "autoclave_ledger_append_duration_seconds", Kind.HISTOGRAM, "Time to write a ledger row durably.",
    unit=SECONDS, buckets=WRITES,
)  # fmt: skip
SIGNED_CHECKPOINT = Row(
    "autoclave_signed_checkpoint_timestamp_seconds", Kind.GAUGE,
    "Time of the newest signed checkpoint of the ledger. Absent where nothing is signed.", unit=SECONDS,
)  # fmt: skip
PASSES = Row(
    "autoclave_process_passes_total", Kind.COUNTER,
    "Passes over all processes of the node, to find the holders of devices or the live containers.",
)  # fmt: skip
ROUND = Row(
    "autoclave_monitor_round_timestamp_seconds", Kind.GAUGE, "Time at which the monitor last finished a round.",
    unit=SECONDS,
)  # fmt: skip
ROUND_FAILURES = Row("autoclave_monitor_failures_total", Kind.COUNTER, "Failed observations of devices or of the node.")
REQUESTS = Row(
    "autoclave_request_duration_seconds", Kind.HISTOGRAM,
    "Time to answer a request of the plugin or another client, including the wait for a scrub.",
    ("request", "outcome"), SECONDS, ANSWERS,
)  # fmt: skip
REQUEST_REFUSALS = Row("autoclave_request_refusals_total", Kind.COUNTER, "Refused requests.", ("request", "reason"))

DEVICES = Row(
    "autoclave_devices", Kind.GAUGE,
    "Number of devices in each group: available, in_use, preparing, blocked, quarantined. Each device is in one group.",
    ("availability",),
)  # fmt: skip

# -- each device

DEVICE = Row(
    "autoclave_device_info", Kind.INFO, "Properties of a device. Join on uuid.",
    (*ONE, "model", "pci", "driver", "resource", "parent"),
)  # fmt: skip
STATE = Row(
    "autoclave_device_state", Kind.GAUGE, "1 for the present state of a device. Other states have no series.",
    (*ONE, "state"),
)  # fmt: skip
STATE_SINCE = Row(
    "autoclave_device_state_since_timestamp_seconds", Kind.GAUGE, "Time at which a device entered its present state.",
    ONE, SECONDS,
)  # fmt: skip
HEALTHY = Row("autoclave_device_healthy", Kind.GAUGE, "1 while a device is offered to the kubelet as Healthy.", ONE)
CROWDED = Row(
    "autoclave_device_crowded", Kind.GAUGE,
    "1 while a device has a tenant beside which a container of another pod was seen, until the tenancy ends.", ONE,
)  # fmt: skip
BLOCKED = Row(
    "autoclave_device_blocked", Kind.GAUGE,
    "1 while something blocks the scrub of a device; `autoclave explain` says what. Absent otherwise.", ONE,
)  # fmt: skip
SICK = Row(
    "autoclave_device_sick", Kind.GAUGE, "1 while a device is in use and sick. It is quarantined when it is free.",
    (*ONE, "reason"),
)  # fmt: skip
SIGN = Row(
    "autoclave_device_sign", Kind.GAUGE, "1 for each sign of a problem that the driver reports now.",
    (*ONE, "sign"),
)  # fmt: skip
QUARANTINED = Row(
    "autoclave_quarantined", Kind.GAUGE, "1 while a device is in quarantine, with the reason. Absent otherwise.",
    (*ONE, "reason"),
)  # fmt: skip
QUARANTINE_SINCE = Row(
    "autoclave_quarantine_since_timestamp_seconds", Kind.GAUGE, "Time at which a device entered quarantine.",
    ONE, SECONDS,
)  # fmt: skip
QUARANTINE_PROBES = Row(
    "autoclave_quarantine_probes", Kind.GAUGE, "Number of probation tests since a device entered quarantine.", ONE
)
QUARANTINE_NEXT = Row(
    "autoclave_quarantine_next_probe_timestamp_seconds", Kind.GAUGE,
    "Time of the next probation test of a device. Absent while it waits for an operator.", ONE, SECONDS,
)  # fmt: skip
LAST_SCRUB = Row(
    "autoclave_last_scrub_timestamp_seconds", Kind.GAUGE, "Time at which a device was last proven clean.", ONE, SECONDS
)
COVERAGE = Row(
    "autoclave_scrub_coverage_ratio", Kind.GAUGE,
    "Share of the allocatable memory of a device that its last proof covers.",
    ONE, "ratio",
)  # fmt: skip
UNCOVERED = Row(
    "autoclave_scrub_uncovered_bytes", Kind.GAUGE,
    "Allocatable memory that the last proof of a device does not cover, for the device with the most.",
    unit="bytes",
)  # fmt: skip
SCRUB_STEP = Row(
    "autoclave_scrub_step", Kind.GAUGE, "1 for the scrub step that runs on a device. Absent otherwise.", (*ONE, "step")
)
LEAKED = Row(
    "autoclave_leaked_memory_bytes", Kind.GAUGE, "Memory in use on a device that belongs to no process.", ONE, "bytes"
)
TEMPERATURE = Row("autoclave_device_temperature_celsius", Kind.GAUGE, "Temperature of a whole GPU.", ONE, "celsius")
SLOWDOWN = Row(
    "autoclave_device_slowdown_temperature_celsius", Kind.GAUGE, "Temperature from which a GPU lowers its clocks.",
    ONE, "celsius",
)  # fmt: skip
POWER = Row("autoclave_device_power_watts", Kind.GAUGE, "Power that a whole GPU draws.", ONE, "watts")

# -- events of devices

SCRUB_ENDS = Row(
    "autoclave_scrubs_total", Kind.COUNTER, "Finished scrubs by path, trigger and outcome.",
    ("path", "trigger", "outcome"),
)  # fmt: skip
SCRUB_TIME = Row(
    "autoclave_scrub_duration_seconds", Kind.HISTOGRAM, "Duration of scrubs that ended with a proof.", ("path",),
    SECONDS, SCRUBS,
)  # fmt: skip
STEP_TIME = Row(
    "autoclave_step_duration_seconds", Kind.HISTOGRAM, "Duration of a scrub step with any outcome.", ("step",),
    SECONDS, STEPS,
)  # fmt: skip
TIME_TO_CLEAN = Row(
    "autoclave_time_to_clean_seconds", Kind.HISTOGRAM,
    "Time from the release of a device, or another loss of its proof, to its next proof; without quarantined devices.",
    (), SECONDS, SCRUBS,
)  # fmt: skip
STEP_FAILURES = Row(
    "autoclave_step_failures_total", Kind.COUNTER, "Failed scrub steps, by step, outcome and blame.",
    ("step", "outcome", "blame"),
)  # fmt: skip
ESCALATIONS = Row("autoclave_escalations_total", Kind.COUNTER, "Scrubs that failed and continued with a reset.")
SCRUBBED = Row(
    "autoclave_scrubbed_bytes_total",
    Kind.COUNTER,
    "Bytes of device memory that scrubs overwrote and read back.",
    unit="bytes",
)
RESIDUE = Row(
    "autoclave_residue_found_total", Kind.COUNTER,
    "Scrubs that found data of an earlier user. The driver had not cleared it; the scrub did. Not counted after a scrub"
    " that ended in the middle, or that left its pattern (clear.passes: random): that pattern may be in memory.", ONE,
)  # fmt: skip
RESIDUE_BYTES = Row(
    "autoclave_residue_bytes_total", Kind.COUNTER,
    "Bytes of earlier users that scrubs found and cleared. A fast path may search only a part of the memory.", ONE,
    "bytes",
)  # fmt: skip
PROCESSES = Row(
    "autoclave_processes_found_total", Kind.COUNTER, "Processes that scrubs found on their devices, by kind.", ("kind",)
)
TERMINATED = Row("autoclave_processes_terminated_total", Kind.COUNTER, "Processes that scrubs ended.")
RESETS = Row("autoclave_resets_total", Kind.COUNTER, "Resets of devices by outcome.", ("outcome",))
QUARANTINES = Row(
    "autoclave_quarantines_total", Kind.COUNTER, "Devices that entered quarantine, by reason.", ("reason",)
)
RETURNS = Row(
    "autoclave_quarantine_returns_total", Kind.COUNTER,
    "Devices that returned from quarantine: by evidence, or by the decision of an operator.", ("by",),
)  # fmt: skip
XIDS = Row("autoclave_xids_total", Kind.COUNTER, "Errors that the driver reported, by XID code.", (*ONE, "xid"))
UNAUTHORISED = Row(
    "autoclave_unauthorised_use_total", Kind.COUNTER,
    "How often a process that the policy does not exempt used a clean device without a grant (had_by: nobody), or a"
    " container one that another pod or job had (had_by: tenant, which is absent until the first such use).",
    (*ONE, "had_by"),
)  # fmt: skip
FENCE_DEVICES = Row(
    "autoclave_fence_devices", Kind.GAUGE,
    "Number of devices by what the policy wants of the fence, and what it does with a process that was not given the"
    " device: refuse pods (hold) or all (refuse), or only count (watch; only watch, where the policy says more; open to"
    " all, for now). none: no fence. lacks: why it does less than the policy wants; empty where it does all of it.",
    ("wanted", "mode", "lacks"),
)  # fmt: skip
FENCE_SINCE = Row(
    "autoclave_fence_since_timestamp_seconds", Kind.GAUGE,
    "Time since which this service keeps the fence standing without a gap. Absent where none stands.", unit=SECONDS,
)  # fmt: skip
FENCE_LEASE = Row(
    "autoclave_fence_lease_seconds", Kind.GAUGE,
    "For how long others are still refused without a sign of the service, which renews that in each round. 0 where"
    " nobody is refused. Absent where no fence stands.", unit=SECONDS,
)  # fmt: skip
FENCE_ATTEMPTS = Row(
    "autoclave_fence_open_attempts_total", Kind.COUNTER,
    "How often a process that was not given a device asked the kernel to open it: it was refused, or only counted."
    " An opening that is let through asks up to three times. Of who asks again and again, ten refused attempts a"
    " second are counted here. Not of programs that the policy exempts. had_by: whether a tenant had the device, or"
    " nobody. Absent until somebody has asked.", (*ONE, "answer", "had_by"),
)  # fmt: skip
UNSIGNED = Row(
    "autoclave_receipts_unsigned_total", Kind.COUNTER,
    "Receipts that are not signed although the service has a key. Stays 0 where nothing is signed.",
)  # fmt: skip
GRANTS = Row(
    "autoclave_grants_total", Kind.COUNTER, "Devices handed out: on a proof, or without one under mode observe.",
    ("proof",),
)  # fmt: skip

TABLE = rows(globals())
