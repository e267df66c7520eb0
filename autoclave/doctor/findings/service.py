"""Checks of the scrub service: whether it answers, its sockets, its ledger and its policy."""

from __future__ import annotations

from collections.abc import Iterator

from autoclave.doctor import base
from scrubber.core import views
from scrubber.ground.errors import AutoclaveError, Reason, Unreachable


def _service(facts: base.NodeFacts) -> Iterator[base.Finding]:
    match facts.answer:
        case views.Status(service=it):
            about = f"version {it.version}, backend {it.backend}, policy {it.policy}"
            yield base.ok("service", f"the scrub service answers: {about}")
        case AutoclaveError(reason=Reason.LEDGER_UNAVAILABLE):
            yield base.ok("service", "the scrub service answers, but cannot use its ledger")
        case Unreachable(message=message):
            text, _, remedy = message.partition("; ")  # the message ends with its remedy
            yield base.broken("service", text, remedy or "give a shorter --run-dir")
        case AutoclaveError() as error:
            text = f"the scrub service gives no status: {error.message}"
            yield base.broken("service", text, "read its log; restart it")


def _scrubber_socket(facts: base.NodeFacts) -> Iterator[base.Finding]:
    """The plugin's socket file may be gone while the operators' socket still answers."""
    if facts.status is None:
        return
    it = facts.scrubber_socket
    if it.fault is not None:
        text = f"the plugin cannot ask the scrub service at {it.path}: {it.fault.text}"
        yield base.broken("scrubber-socket", text, "restart `autoclave scrubber`")
    else:
        yield base.ok("scrubber-socket", f"the scrub service accepts connections of the plugin at {it.path}")


def _run_dir(facts: base.NodeFacts) -> Iterator[base.Finding]:
    it = facts.run_dir
    if it.fault is not None:
        remedy = "start `autoclave scrubber`, which makes it, or name its --run-dir"
        text = f"cannot use the run directory {it.path}: {it.fault.text}"
        yield base.broken("run-dir", text, base.as_root(it.fault, remedy))
    elif not it.ours:
        yield base.broken("run-dir", f"the run directory {it.path} belongs to another user", base.OTHER_USER)
    elif not it.private:
        text = f"other users may write to the run directory {it.path}, and could replace the socket by their own"
        yield base.broken("run-dir", text, f"find out what changed its mode; `chmod 0700 {it.path}`")
    else:
        yield base.ok("run-dir", f"no other user may enter the run directory {it.path}")


def _ledger(facts: base.NodeFacts) -> Iterator[base.Finding]:
    match facts.answer:
        case views.Status(service=it) if it.ledger_fault:
            text = f"the ledger cannot be written, so nothing is handed out: {it.ledger_fault}"
            yield base.broken("ledger", text, f"make room in {it.state_dir}, or repair its disk")
        case views.Status(service=it):
            yield base.ok("ledger", f"the last write to the ledger in {it.state_dir} succeeded: {it.ledger_rows} rows")
        case AutoclaveError(reason=Reason.LEDGER_UNAVAILABLE, message=message):
            remedy = "repair what the message names; the service then tries again by itself"
            yield base.broken("ledger", f"there is no ledger, so {message}", remedy)


def _set_aside(facts: base.NodeFacts) -> Iterator[base.Finding]:
    if facts.status is None:
        return
    service = facts.status.service
    for name in service.set_aside:
        remedy = (
            "`autoclave ledger export` it, quarantine the same devices again, move the file away, restart the service"
        )
        text = (
            f"a damaged ledger was set aside as {name} in {service.state_dir}; the quarantines in it are not in force"
        )
        yield base.warning("ledger-set-aside", text, remedy)
    if not service.set_aside:
        yield base.ok("ledger-set-aside", "no damaged ledger was set aside")


def _policy(facts: base.NodeFacts) -> Iterator[base.Finding]:
    if facts.status is None:
        return
    service = facts.status.service
    if service.policy_fault:
        # Broken: the service would not start with the policy as it is written.
        text = f"the newest policy is not in force, the old one is: {service.policy_fault}"
        remedy = (
            "correct the file until `autoclave policy check FILE` finds no fault; the service then loads it by itself"
        )
        yield base.broken("policy", text, remedy)
    else:
        yield base.ok("policy", f"the newest policy is in force: {service.policy}")


def _concessions(facts: base.NodeFacts) -> Iterator[base.Finding]:
    if facts.status is None:
        return
    service = facts.status.service
    for sentence in service.concessions:
        remedy = f"if this is not intended, remove it from policy {service.policy}"
        yield base.warning("concession", f"the policy gives up a promise: {sentence}", remedy)
    if not service.concessions:
        yield base.ok("concession", f"policy {service.policy} gives up no promise for the devices of this node")


CHECKS = (_service, _scrubber_socket, _run_dir, _ledger, _set_aside, _policy, _concessions)
