"""The promises that a policy gives up: one sentence for each, for operators to read before they use the policy."""

from __future__ import annotations

from policies.model import Mode, OnChip, OnSick, Policy
from policies.path import ScrubPath

RESTARTS = """restart_on_sick allow: a container may restart on a device whose results and isolation are in doubt"""

FIRST_LOOK = """paths.first_look fast: an unknown device is not tested, unless a scrub fails"""

ON_CHIP = """clear.on_chip slow-path: registers and shared memory keep what the last tenant left there, unless the \
slow path or the path reset runs"""


def of(policy: Policy) -> tuple[str, ...]:
    """One sentence for each promise that this policy gives up."""
    found = (
        (
            policy.mode is Mode.OBSERVE,
            "mode observe: devices are handed out without a proof; the ledger records each such grant",
        ),
        (policy.paths.first_look is ScrubPath.FAST, FIRST_LOOK),
        (policy.clear.on_chip is OnChip.SLOW_PATH, ON_CHIP),
        (policy.restart_on_sick is OnSick.ALLOW, RESTARTS),
        (
            policy.proof.survives_restart,
            "proof.survives_restart: use of a device while the service was down is not noticed",
        ),
    )
    return tuple(sentence for given_up, sentence in found if given_up)
