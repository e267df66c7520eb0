"""The metrics of the device plugin: THE TABLE. A stable contract, because dashboards of users read these names.

``docs/metrics.md`` is generated from this table and the table of the scrub service. Tests compare dashboards and alerts
with both.
"""

from __future__ import annotations

from scrubber.ground.metric_table import Kind, Row

# A call takes milliseconds, or waits for a scrub. The limits are 5 s for Allocate and 25 s for PreStartContainer.
HOOKS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)

BUILD = Row("autoclave_plugin_build_info", Kind.INFO, "Version of the device plugin.", ("version",))
READY = Row(
    "autoclave_plugin_ready", Kind.GAUGE,
    "1 while the scrub service answers and every resource is registered; /readyz says why not.",
)  # fmt: skip
SCRUBBER = Row(
    "autoclave_scrubber_connected", Kind.GAUGE, "1 while the plugin has a current device list from the scrub service."
)
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
    "Registrations with the kubelet, failed attempts and lost registrations, by cause.", ("resource", "outcome"),
)  # fmt: skip
CONNECTED = Row(
    "autoclave_kubelet_connected", Kind.GAUGE, "1 while the kubelet reads the device list of a resource.", ("resource",)
)
LISTED = Row(
    "autoclave_listed_devices", Kind.GAUGE, "Number of devices of a resource in the last list, by health.",
    ("resource", "health"),
)  # fmt: skip
LISTS = Row("autoclave_lists_total", Kind.COUNTER, "Device lists that the plugin sent to the kubelet.", ("resource",))

TABLE = (BUILD, READY, SCRUBBER, HOOK_TIME, HOOK_REFUSALS, REGISTRATIONS, CONNECTED, LISTED, LISTS)
