"""What a policy gives up in writing: each a sentence that an operator should have read before a tenant comes."""

from __future__ import annotations

from policies.model import Gate, Mode, OnSick, Policy
from policies.path import Path

PRESTART = """gate prestart: after a restart of the kubelet, until the plugin is back, a container may start on a \
device that is still dirty"""

RESTARTS = """restart_on_sick allow: a container restarts on a device of which results and isolation are in doubt"""

FIRST_LOOK = """paths.first_look fast: a device of which nothing is known is neither reset nor tested, nor is the \
memory on its chip overwritten, unless a scrub failed"""


def of(policy: Policy) -> tuple[str, ...]:
    """One sentence for each promise that this policy does not keep."""
    found = (
        (policy.mode is Mode.OBSERVE, "mode observe: devices are handed out unproven, and only written down"),
        (policy.gate is Gate.PRESTART, PRESTART),
        (policy.paths.first_look is Path.FAST, FIRST_LOOK),
        (policy.restart_on_sick is OnSick.ALLOW, RESTARTS),
        (
            policy.proof.survives_restart,
            "proof.survives_restart: who used a device while the service was away is not noticed",
        ),
    )
    return tuple(sentence for given_up, sentence in found if given_up)
