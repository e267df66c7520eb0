"""What the device plugin counts and shows: THE TABLE. A stable contract: strangers' dashboards rest on it.

``docs/metrics.md`` is made of this table and the scrub service's, and dashboards and alerts are held against both.
"""

from __future__ import annotations

from scrubber.ground.metric_table import Kind, Row

# A look-up takes milliseconds; 5 s is what Allocate may take, 25 s what a start may.
HOOKS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)

BUILD = Row("autoclave_plugin_build_info", Kind.INFO, "The device plugin: its version.", ("version",))
READY = Row(
    "autoclave_plugin_ready", Kind.GAUGE,
    "1 while the scrub service is heard and every resource is registered; /readyz says what is in the way.",
)  # fmt: skip
SCRUBBER = Row("autoclave_scrubber_connected", Kind.GAUGE, "1 while the scrub service's list is heard and believed.")
HOOK_TIME = Row(
    "autoclave_hook_duration_seconds", Kind.HISTOGRAM, "Time to answer the kubelet, the wait for a scrub included.",
    ("hook", "outcome"), "seconds", HOOKS,
)  # fmt: skip
HOOK_REFUSALS = Row(
    "autoclave_hook_refusals_total", Kind.COUNTER, "Questions of the kubelet that were answered with a no.",
    ("hook", "reason"),
)  # fmt: skip
REGISTRATIONS = Row(
    "autoclave_kubelet_registrations_total", Kind.COUNTER,
    "Registrations with the kubelet, and tries and losses by their cause.", ("resource", "outcome"),
)  # fmt: skip
CONNECTED = Row(
    "autoclave_kubelet_connected",
    Kind.GAUGE,
    "1 while the kubelet listens to the list of a resource.",
    ("resource",),
)
LISTED = Row(
    "autoclave_listed_devices", Kind.GAUGE, "Devices of a resource as the kubelet is told of them.",
    ("resource", "health"),
)  # fmt: skip
LISTS = Row("autoclave_lists_total", Kind.COUNTER, "Lists that were sent to the kubelet.", ("resource",))

TABLE = (BUILD, READY, SCRUBBER, HOOK_TIME, HOOK_REFUSALS, REGISTRATIONS, CONNECTED, LISTED, LISTS)
