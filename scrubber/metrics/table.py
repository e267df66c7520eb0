"""What the scrub service counts and shows: THE TABLE. A stable contract: strangers' dashboards rest on it.

``gpu`` is what people call a device (``0``, and ``0:1`` for a slice), ``uuid`` its name for good; everything else that
a device is stands in ``autoclave_device_info``. What is not known is not shown: absent is not zero. No label holds a
pod, a process or a receipt. ``docs/metrics.md`` is made of this table, and dashboards and alerts are held against it.
"""

from __future__ import annotations

from scrubber.ground.metric_table import Kind, Row

ONE = ("gpu", "uuid")
SECONDS = "seconds"

# What is asked is answered in milliseconds, or when a scrub is over; 5 and 25 s are the usual budgets of the hooks.
ANSWERS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
SCRUBS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
STEPS = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0)
WRITES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 2.0)

# -- the service

BUILD = Row(
    "autoclave_build_info", Kind.INFO, "The scrub service: its version, and which devices it works on.",
    ("version", "backend"),
)  # fmt: skip
READY = Row("autoclave_ready", Kind.GAUGE, "1 while the service can hand devices out; /readyz says what is in the way.")
POLICY = Row(
    "autoclave_policy_info",
    Kind.INFO,
    "The policy in force, and a digest of all that it says.",
    ("policy", "digest"),
)
POLICY_FAULT = Row(
    "autoclave_policy_fault", Kind.GAUGE, "1 while the policy's file is wrong: the one before it stays in force."
)
CONCESSIONS = Row(
    "autoclave_policy_concessions",
    Kind.GAUGE,
    "Promises that the policy in force gives up, as `autoclave status` lists.",
)
LEDGER_ROWS = Row("autoclave_ledger_rows", Kind.GAUGE, "The number of the newest row of the ledger.")
LEDGER_FAULT = Row(
    "autoclave_ledger_fault", Kind.GAUGE, "1 while the ledger cannot be written: nothing is handed out then."
)
LEDGER_VERIFIED = Row(
    "autoclave_ledger_verified_timestamp_seconds", Kind.GAUGE, "When the chain of the ledger was last verified whole.",
    unit=SECONDS,
)  # fmt: skip
LEDGERS_SET_ASIDE = Row(
    "autoclave_ledgers_set_aside",
    Kind.GAUGE,
    "Damaged ledgers that lie beside the present one, for a person to look at.",
)
LEDGER_APPEND = Row(
    "autoclave_ledger_append_duration_seconds", Kind.HISTOGRAM, "Time until a row was durable.",
    unit=SECONDS, buckets=WRITES,
)  # fmt: skip
ROUND = Row(
    "autoclave_monitor_round_timestamp_seconds", Kind.GAUGE, "When the monitor last finished a round over all devices.",
    unit=SECONDS,
)  # fmt: skip
ROUND_FAILURES = Row(
    "autoclave_monitor_failures_total", Kind.COUNTER, "Looks after a device, or at the node, that failed."
)
REQUESTS = Row(
    "autoclave_request_duration_seconds", Kind.HISTOGRAM,
    "Time to answer whoever hands devices out, the wait for a scrub included.",
    ("request", "outcome"), SECONDS, ANSWERS,
)  # fmt: skip
REQUEST_REFUSALS = Row(
    "autoclave_request_refusals_total",
    Kind.COUNTER,
    "Requests that were answered with a no.",
    ("request", "reason"),
)

# -- each device

DEVICE = Row(
    "autoclave_device_info", Kind.INFO, "What a device is. Join on uuid.",
    (*ONE, "model", "pci", "driver", "resource", "parent"),
)  # fmt: skip
STATE = Row(
    "autoclave_device_state", Kind.GAUGE, "1 for the state that a device is in; its other states are not shown.",
    (*ONE, "state"),
)  # fmt: skip
STATE_SINCE = Row(
    "autoclave_device_state_since_timestamp_seconds", Kind.GAUGE, "When a device came to be in its present state.",
    ONE, SECONDS,
)  # fmt: skip
HEALTHY = Row("autoclave_device_healthy", Kind.GAUGE, "1 while a device is offered to the kubelet.", ONE)
BLOCKED = Row(
    "autoclave_device_blocked", Kind.GAUGE,
    "1 while something is in the way of a scrub; `autoclave explain` says what. Absent otherwise.", ONE,
)  # fmt: skip
SICK = Row(
    "autoclave_device_sick", Kind.GAUGE, "1 while a device is in use and sick: taken out once it is free.",
    (*ONE, "reason"),
)  # fmt: skip
SIGN = Row(
    "autoclave_device_sign", Kind.GAUGE, "1 for each thing that the driver says is wrong with a device now.",
    (*ONE, "sign"),
)  # fmt: skip
QUARANTINED = Row(
    "autoclave_quarantined", Kind.GAUGE, "1 while a device is kept out, with the reason. Absent otherwise.",
    (*ONE, "reason"),
)  # fmt: skip
QUARANTINE_SINCE = Row(
    "autoclave_quarantine_since_timestamp_seconds", Kind.GAUGE, "When a device that is kept out was taken out.",
    ONE, SECONDS,
)  # fmt: skip
QUARANTINE_PROBES = Row(
    "autoclave_quarantine_probes", Kind.GAUGE, "How often a device that is kept out was tried again.", ONE
)
QUARANTINE_NEXT = Row(
    "autoclave_quarantine_next_probe_timestamp_seconds", Kind.GAUGE,
    "When a device that is kept out is tried again. Absent where it waits for a person.", ONE, SECONDS,
)  # fmt: skip
LAST_SCRUB = Row(
    "autoclave_last_scrub_timestamp_seconds", Kind.GAUGE, "When a device was last proven clean.", ONE, SECONDS
)
COVERAGE = Row(
    "autoclave_scrub_coverage_ratio", Kind.GAUGE, "Part of a device's allocatable memory that its last proof covers.",
    ONE, "ratio",
)  # fmt: skip
SCRUB_STEP = Row(
    "autoclave_scrub_step", Kind.GAUGE, "1 for the step that runs on a device. Absent otherwise.", (*ONE, "step")
)
LEAKED = Row(
    "autoclave_leaked_memory_bytes",
    Kind.GAUGE,
    "Memory of a device in use that no process answers for.",
    ONE,
    "bytes",
)
TEMPERATURE = Row("autoclave_device_temperature_celsius", Kind.GAUGE, "Temperature of a whole GPU.", ONE, "celsius")
SLOWDOWN = Row(
    "autoclave_device_slowdown_temperature_celsius", Kind.GAUGE, "Temperature from which on a GPU slows itself down.",
    ONE, "celsius",
)  # fmt: skip
POWER = Row("autoclave_device_power_watts", Kind.GAUGE, "Power that a whole GPU draws.", ONE, "watts")

# -- what happened to devices

SCRUB_ENDS = Row(
    "autoclave_scrubs_total", Kind.COUNTER, "Scrubs that ended, by how thorough they were, what began them, and how.",
    ("path", "trigger", "outcome"),
)  # fmt: skip
SCRUB_TIME = Row(
    "autoclave_scrub_duration_seconds", Kind.HISTOGRAM, "Time of a scrub that ended with a proof.", ("path",), SECONDS,
    SCRUBS,
)  # fmt: skip
STEP_TIME = Row(
    "autoclave_step_duration_seconds", Kind.HISTOGRAM, "Time of one step of a scrub, however it ended.", ("step",),
    SECONDS, STEPS,
)  # fmt: skip
TIME_TO_CLEAN = Row(
    "autoclave_time_to_clean_seconds", Kind.HISTOGRAM,
    "Time from a device's release, or whatever else ended its proof, until it was proven clean; not of one taken out.",
    (), SECONDS, SCRUBS,
)  # fmt: skip
STEP_FAILURES = Row(
    "autoclave_step_failures_total", Kind.COUNTER, "Steps that did not pass, by whose fault that was.",
    ("step", "outcome", "blame"),
)  # fmt: skip
ESCALATIONS = Row("autoclave_escalations_total", Kind.COUNTER, "Fast paths that failed and went on as slow ones.")
SCRUBBED = Row(
    "autoclave_scrubbed_bytes_total", Kind.COUNTER, "Memory that was overwritten and read back.", unit="bytes"
)
RESIDUE = Row(
    "autoclave_residue_found_total", Kind.COUNTER,
    "Scrubs that found bytes of an earlier user: the driver had not cleared them, and the scrub did.", ONE,
)  # fmt: skip
RESIDUE_BYTES = Row(
    "autoclave_residue_bytes_total", Kind.COUNTER, "Bytes of earlier users that scrubs have found, and cleared.", ONE,
    "bytes",
)  # fmt: skip
PROCESSES = Row(
    "autoclave_processes_found_total", Kind.COUNTER, "Processes that a scrub found on its device.", ("kind",)
)
TERMINATED = Row("autoclave_processes_terminated_total", Kind.COUNTER, "Processes that a scrub has ended.")
RESETS = Row("autoclave_resets_total", Kind.COUNTER, "Resets of devices.", ("outcome",))
QUARANTINES = Row("autoclave_quarantines_total", Kind.COUNTER, "Devices that were taken out.", ("reason",))
RETURNS = Row(
    "autoclave_quarantine_returns_total", Kind.COUNTER,
    "Devices that came back: by evidence, or by a person's word without any.", ("by",),
)  # fmt: skip
XIDS = Row("autoclave_xids_total", Kind.COUNTER, "Errors that the driver has reported, by code.", (*ONE, "xid"))
UNAUTHORISED = Row(
    "autoclave_unauthorised_use_total",
    Kind.COUNTER,
    "Times that somebody used a clean device without asking.",
    ONE,
)
GRANTS = Row(
    "autoclave_grants_total", Kind.COUNTER, "Devices that were handed out: on a proof, or as policy observe lets them.",
    ("proof",),
)  # fmt: skip

TABLE = (
    BUILD, READY, POLICY, POLICY_FAULT, CONCESSIONS,
    LEDGER_ROWS, LEDGER_FAULT, LEDGER_VERIFIED, LEDGERS_SET_ASIDE, LEDGER_APPEND,
    ROUND, ROUND_FAILURES, REQUESTS, REQUEST_REFUSALS,
    DEVICE, STATE, STATE_SINCE, HEALTHY, BLOCKED, SICK, SIGN,
    QUARANTINED, QUARANTINE_SINCE, QUARANTINE_PROBES, QUARANTINE_NEXT,
    LAST_SCRUB, COVERAGE, SCRUB_STEP, LEAKED, TEMPERATURE, SLOWDOWN, POWER,
    SCRUB_ENDS, SCRUB_TIME, STEP_TIME, TIME_TO_CLEAN, STEP_FAILURES, ESCALATIONS, SCRUBBED, RESIDUE, RESIDUE_BYTES,
    PROCESSES, TERMINATED, RESETS, QUARANTINES, RETURNS, XIDS, UNAUTHORISED, GRANTS,
)  # fmt: skip
