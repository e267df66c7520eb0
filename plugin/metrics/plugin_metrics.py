"""The metrics of the device plugin and of the DRA driver: THE TABLES. A stable contract: users read these names.

``docs/metrics.md`` is generated from these tables and the table of the scrub service. Tests compare dashboards and
alerts with all of them.
"""

from __future__ import annotations

from ground.metric_table import Kind, Row, rows

# A call takes milliseconds, or waits for a scrub. The limits are 5 s for Allocate and 25 s for PreStartContainer.
HOOKS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)

BUILD = Row("autoclave_plugin_build_info", Kind.INFO, "Version of the device plugin.", ("version",))
READY = Row(
    "autoclave_plugin_ready", Kind.GAUGE,
    "1 while the scrub service answers and every resource is registered; /readyz says why not.",
)  # fmt: skip
SCRUBBER = Row(
    "autoclave_scrubber_connected", Kind.GAUGE,
    "1 while the plugin or the DRA driver has a current device list from the scrub service.",
)  # fmt: skip
HOOK_TIME = Row(
    "autoclave_hook_duration_seconds", Kind.HISTOGRAM,
    "Time to answer a hook call of the kubelet, including the wait for a scrub.",
    ("hook", "outcome"), "seconds", HOOKS,
)  # fmt: skip
HOOK_REFUSALS = Row(
    "autoclave_hook_refusals_total", Kind.COUNTER, "Refused hook calls of the kubelet.",
    ("hook", "reason"),
)  # fmt: skip
REGISTRATIONS = Row(
    "autoclave_kubelet_registrations_total", Kind.COUNTER,
    "Registrations with the kubelet, failed attempts and lost registrations, by cause. The DRA driver counts under its "
    "name.", ("resource", "outcome"),
)  # fmt: skip
CONNECTED = Row(
    "autoclave_kubelet_connected", Kind.GAUGE, "1 while the kubelet reads the device list of a resource.", ("resource",)
)
LISTED = Row(
    "autoclave_listed_devices", Kind.GAUGE, "Number of devices of a resource in the last list, by health.",
    ("resource", "health"),
)  # fmt: skip
LISTS = Row("autoclave_lists_total", Kind.COUNTER, "Device lists that the plugin sent to the kubelet.", ("resource",))

VENDOR = Row(
    "autoclave_vendor_connected", Kind.GAUGE,
    "With --vendor-dir: 1 while the vendor's plugin of a resource sends its list.", ("resource",),
)  # fmt: skip

UNKNOWN_VARIABLES = Row(
    "autoclave_vendor_unknown_variables_total", Kind.COUNTER,
    "With --vendor-dir: answers of the vendor's plugin with a variable that this release does not know, and lets pass.",
    ("resource",),
)  # fmt: skip

TABLE = rows(globals())

# A claim waits for another claim up to 10 s, for a scrub up to 43 s; the kubelet gives up after 45 s.
CALLS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0)

DRA_BUILD = Row("autoclave_dra_build_info", Kind.INFO, "Version of the DRA driver.", ("version",))
DRA_READY = Row(
    "autoclave_dra_ready", Kind.GAUGE,
    "1 while the scrub service answers, the kubelet knows the driver and the slice is written; /readyz says why not.",
)  # fmt: skip
DRA_REGISTERED = Row(
    "autoclave_dra_registered", Kind.GAUGE,
    "1 after the kubelet has accepted the DRA driver, until the file of a socket is removed.",
)  # fmt: skip
CLAIM_TIME = Row(
    "autoclave_claim_duration_seconds", Kind.HISTOGRAM,
    "Time to prepare or unprepare one claim, including the wait for a scrub.", ("call", "outcome"), "seconds", CALLS,
)  # fmt: skip
CLAIM_REFUSALS = Row(
    "autoclave_claim_refusals_total", Kind.COUNTER, "Claims that could not be prepared or unprepared.",
    ("call", "reason"),
)  # fmt: skip
CLAIMS_WAITING = Row(
    "autoclave_claims_waiting", Kind.GAUGE, "Number of claims that are being prepared or unprepared now.", ("call",)
)
SLICE_WRITES = Row(
    "autoclave_slice_writes_total", Kind.COUNTER, "Attempts to write the ResourceSlice of the node, by outcome.",
    ("outcome",),
)  # fmt: skip
SLICE_WRITTEN = Row(
    "autoclave_slice_written", Kind.GAUGE, "1 while the last attempt to write the ResourceSlice has succeeded."
)
SLICE_DEVICES = Row(
    "autoclave_slice_devices", Kind.GAUGE, "Number of devices of the DRA driver, by whether new claims may get them.",
    ("health",),
)  # fmt: skip

DRA_TABLE = (
    DRA_BUILD, DRA_READY, SCRUBBER, REGISTRATIONS, DRA_REGISTERED, CLAIM_TIME, CLAIM_REFUSALS, CLAIMS_WAITING,
    SLICE_WRITES, SLICE_WRITTEN, SLICE_DEVICES,
)  # fmt: skip
