"""Each mutant of the core turns the tests of the core red.

A mutant is one small change to a *copy* of the tree: a comparison turned round, an ``and`` become ``or``, a word
swapped for its neighbour, a row of a table gone. ``make test`` runs planted ones, each against the one file of tests
that protects its promise. ``make mutate`` also runs every generated mutant, against all tests of the core.

The mutants of a worker share one judge: a process that has imported pytest, the libraries, and modules of the copy that
no mutant changes and that import no module that a mutant changes. The judge forks for every mutant.
"""

import ast
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from ground import errors
from policies import policy_model as policy_words
from scrubber.core import model as words
from scrubber.core import observation, owners
from tests.cli.on_machine import ENTERS
from tests.fakes.cuda import emulation
from tests.fakes.cuda.fixtures import FORM

ROOT = Path(__file__).parents[2]
MUTATED = (
    "states", "changes", "record", "owners", "acquire", "start", "ownership", "proof", "next_scrub",
    "pauses", "absence", "device_names", "reset_domains", "leftover", "stuck", "next_action", "tenancy_upkeep",
    "offering", "ailment_traits", "ailments", "answers", "observation", "step_results", "verdict",
)  # fmt: skip
GENERATED_FROM = tuple(f"scrubber/core/{it}.py" for it in MUTATED)
LONG = 300.0  # seconds; a net for tests that hang, no bound on the speed of the machine
JUDGE = """
import json, os, sys
import asyncinotify, grpc.aio, hypothesis, hypothesis.stateful, pydantic, pytest, pytest_asyncio, ruamel.yaml, structlog
import policies.load, scrubber.core.events, scrub_api.views, scrubber.devices.simulated.drills
assert not sys.modules.keys() & set(sys.argv[1:])
for line in sys.stdin:
    output, sys.dont_write_bytecode, arguments = json.loads(line)
    if (child := os.fork()) == 0:
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        status = pytest.main(arguments)
        sys.stdout.flush()
        os._exit(status)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin")
RED = {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}  # a life that cannot be led ends the collection
NEGATED = {
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}
ENUMS = {
    kind.__name__: list(kind)
    for module in (words, policy_words, errors, owners, observation)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Enum) and list(kind)
}


@dataclass(frozen=True)
class Mutant:
    """One place of one file, and what stands there instead."""

    file: str
    old: str
    new: str
    nth: int = 0  # which of several places that read the same
    tests: str = ""  # the file that must turn red; else all of the core's tests
    where: str = "planted"

    def __str__(self) -> str:
        return f"{Path(self.file).stem} {self.where}: {self.old} => {self.new}"

    @contextmanager
    def planted(self, tree):
        place = tree / self.file
        text, times = place.read_text(), place.stat()
        pieces = text.split(self.old)
        assert len(pieces) > self.nth + 1, f"{self.file} does not read {self.old!r} any more: mend this mutant"
        before, after = self.old.join(pieces[: self.nth + 1]), self.old.join(pieces[self.nth + 1 :])
        mutated = before + self.new + after
        ast.parse(mutated)  # it must be wrong, not broken
        try:
            place.write_text(mutated)
            yield
        finally:
            place.write_text(text)
            os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))  # its bytecode is good again


STATES, RESULTS, VERDICT = GENERATED_FROM[0], *GENERATED_FROM[-2:]
PLANS, ON_NO_PATH = "scrubber/core/plans.py", "Traits(Driver.FOR_MEMORY, not_on=frozenset(ScrubPath))"
LEFTOVER = "scrubber/core/leftover.py"
PROOF, IN_PROOF = "scrubber/core/proof.py", "tests/core/test_proof.py"
OWNERSHIP, RECORD, CHANGES = (f"scrubber/core/{it}.py" for it in ("ownership", "record", "changes"))
WRITTEN = "tests/cuda/test_clearing.py::test_the_random_pattern_finds_a_device_that_writes_nothing"
READ_BACK = "tests/cuda/test_clearing.py::test_the_verify_finds_a_flipped_bit_of_the_last_pattern"
START = "scrubber/core/start.py"
ACQUIRE = "scrubber/core/acquire.py"
OFFERING = "scrubber/core/offering.py"
ON_DEVICE = "scrubber/steps/on_device.py"
ROSTER, JOBS = "tests/steps/test_step_functions.py", "tests/jobs/test_jobs.py"
IN_STATES, IN_ACQUIRE, IN_START, IN_OFFERING, IN_RESULTS, IN_VERDICT, IN_RESETS = (
    f"tests/core/test_{it}.py" for it in ("states", "acquire", "start", "offering", "step_results", "verdict", "resets")
)
IN_USES = "tests/service/test_uses.py"
TENANT_REQUESTS, IN_OFFERS = "scrubber/service/tenant_requests.py", "tests/service/test_offers.py"
SCRUB_JOB, OUTLASTS = "scrubber/jobs/scrub_job.py", f"{IN_USES}::test_a_request_outlasts_a"
IN_OWNERSHIP = "tests/core/test_ownership.py"
STUCK, IN_SINCE = "scrubber/core/stuck.py", "tests/core/test_since.py"
TENANT_FILES, IN_TENANT_FILES = "scrubber/receipts/tenant_files.py", "tests/receipts/test_tenant_files.py"
STANDSTILLS = "scrubber/core/standstills.py"
IN_LEDGER = "tests/ledger/test_ledger.py::test_a_write_that_took_seconds_is_recorded"
IN_REPORT = "tests/service/test_report.py::test_a_clear_that_stalls_is_explained_with_advice"
COVERAGE = "tests/core/test_verdict_coverage.py"
JUDGE_OF, IN_JUDGE = "remnant/judge.py", "tests/remnant/test_judge.py"
TENANT = "remnant/tenant.py"
OF_WAYS, IN_WAYS, TRIALS = "access/way_verdict.py", "tests/access/test_way_verdict.py", "tests/access/test_trials.py"
IN_ROUNDS = "tests/remnant/test_rounds.py::test_what_a_driver_leaves_is_found_to_the_byte"
OBSERVED_SINCE, IN_OBSERVED_SINCE = "scrubber/observe/observed_since.py", "tests/observe/test_observed_since.py"
IN_NOTE, IN_POLICY = "tests/receipts/test_note.py", "tests/test_policy.py::test_a_policy_in_force_is_kept_already"
TREE, IN_TREE = "scrubber/ledger/tree.py", "tests/ledger/test_tree.py"
IN_READING = "tests/ledger/test_reading.py"
FENCING, IN_FENCING = "scrubber/core/fencing.py", "tests/core/test_fencing.py"
FENCE, IN_FENCE, IN_GUARD = (
    "scrubber/fence/kernel/fence.py",
    "tests/fence/kernel/test_fence.py",
    "tests/fence/test_guard.py",
)
PROGRAM = "scrubber/fence/kernel/program.py"
RULES, IGNORED = "scrubber/fence/rules.py", "scrubber/fence/ignored.py"
COUNT, PROOFS = "scrubber/fence/count.py", "scrubber/fence/proofs.py"
OWNERS = "scrubber/fence/owner_groups.py"
IN_FENCED = "tests/service/test_fenced.py"
IN_SIGNED = "tests/service/test_signed_counts.py"
OVERRULED = "test_a_later_program_that_overrules_the_fence_is_a_gap"
TAKEN_AWAY = "test_the_fence_taken_away_for_a_moment_is_a_gap"
CONTEXT = "scrubber/service/context.py"
OBSERVATION, IN_OBSERVATION = "scrubber/core/observation.py", "tests/core/test_observation.py"
CHIP = "tests/cuda/test_images.py::test_the_memory_on_each_shipped_chip_is_known"
PLANTED = [
    Mutant(
        FENCING, "return OpenTo.SERVICE if announced else _tenant(record)", "return _tenant(record)", tests=IN_FENCING
    ),
    Mutant(FENCING, "State.DIRTY | State.SCRUBBING", "State.SCRUBBING", tests=IN_FENCING),
    Mutant(FENCING, "_tenant(record) if record.tenancy.until_release else", "", tests=IN_FENCING),
    # Of the table of looks, in the order of its rows. Each makes a weaker look enough.
    Mutant(OBSERVATION, "_always, Look.SEARCH", "_always, Look.FENCE", tests=IN_OBSERVATION),
    Mutant(OBSERVATION, "return self.fence.counts_all and", "return", tests=IN_OBSERVATION),
    Mutant(OBSERVATION, "{Purpose.STEP}, {State.SCRUBBING}", "{Purpose.STEP}, _ANY", tests=IN_OBSERVATION),
    Mutant(OBSERVATION, " and open_to(self.record) is OpenTo.SERVICE", "", tests=IN_OBSERVATION),
    Mutant(OBSERVATION, "is False and not known.kept", "is False", tests=IN_OBSERVATION),
    Mutant(
        OBSERVATION,
        "known.owner_alive is False or not known.owner_known, Look.S",
        "not known.owner_known, Look.S",
        tests=IN_OBSERVATION,
    ),
    Mutant(OBSERVATION, "lambda known: not known.no_other_user", "lambda _: False", tests=IN_OBSERVATION),
    Mutant(OBSERVATION, "lambda known: not known.no_other_user", "lambda _: False", nth=1, tests=IN_OBSERVATION),
    Mutant(
        OBSERVATION,
        "open_to(known.record) is not OpenTo.SERVICE, Look",
        "open_to(known.record) is OpenTo.ALL, Look",
        tests=IN_OBSERVATION,
    ),
    Mutant(
        OBSERVATION, "lambda known: known.listed is not Listed.NOTHING, L", "lambda _: True, L", tests=IN_OBSERVATION
    ),
    Mutant(OBSERVATION, "known.opened and known.fence.searched_ago >= A_WHILE", "False", tests=IN_OBSERVATION),
    Mutant(OBSERVATION, "known.opened and not known.stuck", "False", tests=IN_OBSERVATION),
    Mutant(OBSERVATION, "known.listed is Listed.HOLDER", "known.listed is not Listed.NOTHING", tests=IN_OBSERVATION),
    Mutant(
        OBSERVATION, "known.idle_owner and known.fence.searched_ago < LATELY", "known.idle_owner", tests=IN_OBSERVATION
    ),
    Mutant(
        OBSERVATION,
        "known.no_user and known.no_other_user, Look",
        "known.no_user, Look",
        tests=IN_OBSERVATION,
    ),
    Mutant(OBSERVATION, "known.kept and known.fence.searched_ago < LATELY", "known.kept", tests=IN_OBSERVATION),
    Mutant(OBSERVATION, "known.no_user and not known.stuck and not", "known.no_user and not", tests=IN_OBSERVATION),
    Mutant(OBSERVATION, "    return Look.SEARCH", "    return Look.LIST", tests=IN_OBSERVATION),
    Mutant(FENCE, "self._members.remove(key + _TIME.pack(group))", "pass", tests=IN_FENCE),
    Mutant(FENCE, "if self._counters.get(key) is None:", "if True:", tests=IN_FENCE),
    Mutant(FENCE, "bpf.bind(loaded, self._descriptors[unused])", "pass", tests=IN_GUARD),
    Mutant(FENCE, "if keeper[0] and runs(*keeper):", "if False:", tests=IN_FENCE),
    Mutant(FENCE, "if ids[-1] != self._standing.id:", "if False:", tests=f"{IN_GUARD}::{OVERRULED}"),
    Mutant(FENCE, 'return "" if changes == self._changes', 'return "" if True', tests=f"{IN_GUARD}::{TAKEN_AWAY}"),
    Mutant(PROGRAM, "shift_left(R7, OF_ALL.bit_length() - 1)", "shift_left(R7, 9)", tests=IN_FENCE),
    Mutant(PROGRAM, "jump_if_not(R8, SERVICE, below)", "jump(below)", tests=IN_FENCE),
    Mutant(RULES, "proofs.forget(self._fence, numbers)", "pass", tests=IN_GUARD),
    Mutant(RULES, "if not self._fence.still_rules(self.numbers[uuid]):", "if False:", tests=IN_GUARD),
    Mutant(IGNORED, "if self._service in groups and self._sources", "if self._sources", tests=IN_GUARD),
    Mutant(IGNORED, "if judged is not None and attempt.uptime < judged.until:", "if False:", tests=IN_GUARD),
    Mutant(IGNORED, "holder.started > attempt.uptime:", "False:", tests=IN_GUARD),
    Mutant("scrubber/fence/live_openers.py", "if phase.since <= at", "", tests="tests/fence/test_live_openers.py"),
    Mutant(RULES, "self._fence.miss(number)", "pass", tests=IN_GUARD),
    Mutant(PROOFS, "kept.proof == named(proof, numbers)", "kept.proof", tests=IN_GUARD),
    Mutant(COUNT, "if reader.is_at(end):", "if True:", tests=IN_SIGNED),
    Mutant("scrubber/ledger/ledger.py", "if self.overtaken(device, seen", "if not (device, seen", tests=IN_SIGNED),
    Mutant(OWNERS, "if not awaited or was_known", "if True", tests=IN_GUARD),
    Mutant(OWNERS, "if not awaited or was_known", "if not awaited", tests=IN_SIGNED),
    Mutant(RULES, "closed and self.lease_left > 0.0", "closed", tests=IN_GUARD),
    Mutant(RULES, " and not rule.to_all", "", tests=IN_FENCED),
    Mutant(CONTEXT, "guard is not None and guard.rules.keeps_out(device)", "True", tests=IN_FENCED),
    Mutant("scrubber/cuda/clearing.py", "BESIDE.get(capability, unknown)", "BESIDE.get(capability, ())", tests=CHIP),
    Mutant("scrubber/cuda/clearing.py", "(10, 3): (TENSOR,)", "(10, 3): ()", tests=CHIP),
    Mutant(VERDICT, "done.scratch.units_left if", "() if", tests=IN_VERDICT),
    # An outsider that never tries, and verdicts that take too little for a pass.
    Mutant(
        "access/probe.py",
        'return os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC), ""',
        'return None, "EPERM"',
        tests="tests/access/test_probe.py::test_a_node_that_is_there_is_opened_and_named",
    ),
    Mutant("access/probe.py", '"control": opens_anything()', '"control": True', tests="tests/access/test_probe.py"),
    Mutant(OF_WAYS, "Verdict.NOT_TRIED in chosen or ", "", tests=IN_WAYS),
    Mutant(OF_WAYS, "if not has_gpu(owner) or", "if", tests=IN_WAYS),
    Mutant(OF_WAYS, "outcome.control and ", "", tests=IN_WAYS),
    Mutant(OF_WAYS, '"EPERM", "EACCES"', '"EPERM", "EACCES", "ENXIO"', tests=IN_WAYS),
    Mutant(OF_WAYS, "isinstance(trial.outcome, Refused) and not trial.plain_ran", "False", tests=IN_WAYS),
    Mutant(OF_WAYS, "outcome.given and outcome.same and outcome.still_open", "False", tests=IN_WAYS),
    Mutant(OF_WAYS, "lambda outcome: not outcome.known", "lambda _: False", tests=IN_WAYS),
    Mutant(OF_WAYS, "lambda trial: not _answer(trial).control", "lambda _: False", tests=IN_WAYS),
    Mutant(OF_WAYS, "lambda trial: not trial.owner_held", "lambda _: False", tests=IN_WAYS),
    Mutant(
        "access/trials.py",
        "self.containers.runs(owner) if owner else True",
        "True",
        tests=f"{TRIALS}::test_an_owner_that_ends_early_makes_no_way_pass",
    ),
    Mutant(
        "access/trials.py",
        "kept and not outcome.given and outcome.given_later",
        "kept",
        tests=f"{TRIALS}::test_a_left_process_that_ended_passes_only_if_awaited",
    ),
    Mutant(
        "access/pod_states.py",
        " and not _NO_REFUSAL.search(words)",
        "",
        tests=f"{TRIALS}::test_a_quota_or_a_silence_is_no_refusal",
    ),
    Mutant(JUDGE_OF, "if any(look.never_written for look in looks):", "if False:", tests=IN_JUDGE),
    Mutant(JUDGE_OF, "for look in looks)) > 0:", "for look in looks)) > 16:", tests=IN_JUDGE),
    Mutant(JUDGE_OF, "if not all(_controlled(", "if not any(_controlled(", tests=IN_JUDGE),
    Mutant(JUDGE_OF, "if held or any(", "if any(", tests=IN_JUDGE),
    Mutant(TENANT, "whole.write(pattern, _unheard)", "whole.write(ZERO, _unheard)", tests=IN_ROUNDS),
    Mutant(TENANT, "planted += recognised(data, order.key)", "planted += 0", tests=IN_ROUNDS),
    Mutant(JUDGE_OF, "if not looks or not all(look.read for look in looks):", "if not looks:", tests=IN_JUDGE),
    Mutant("scrubber/receipts/note.py", "_name(checkpoint.origin)", "checkpoint.origin", tests=IN_NOTE),
    Mutant("scrubber/policy.py", "            self._replace_last(loaded)", "            pass", tests=IN_POLICY),
    Mutant(TREE, "!= (place, node):", "!= (place, node) and level == 0:", tests=IN_TREE),
    Mutant(TREE, "elif not contains(connection, size, noted):", "elif False:", tests=IN_TREE),
    Mutant("scrubber/ledger/ledger_rows.py", "secrets.token_hex(SALT)", '""', tests=IN_TREE),
    Mutant("scrubber/ledger/reading.py", "in database.evidence(connection, first)", "in ()", tests=IN_READING),
    Mutant(STATES, "ev.ScrubFailed: State.DIRTY", "ev.ScrubFailed: State.CLEAN", tests=IN_STATES),
    Mutant(STATES, "ev.ScrubInterrupted: State.DIRTY", "ev.ScrubInterrupted: State.CLEAN", tests=IN_STATES),
    Mutant(STATES, "ev.Released: State.DIRTY", "ev.Released: State.CLEAN", tests=IN_STATES),
    Mutant(STATES, "ev.Distrusted: State.UNKNOWN", "ev.Distrusted: State.CLEAN", nth=2, tests=IN_STATES),
    Mutant(LEFTOVER, "holder.started <= tenancy[1]", "holder.started", tests="tests/core/test_eviction.py"),
    Mutant(VERDICT, "is not Outcome.PASSED", "not in (Outcome.PASSED, Outcome.TIMED_OUT)", tests=IN_VERDICT),
    Mutant(VERDICT, "is not Outcome.PASSED", "is not Outcome.PASSED and step is not Step.VERIFY", tests=IN_VERDICT),
    Mutant(PLANS, "Cleared, marked=True", "Cleared, not_on=frozenset({_FAST}), marked=True", tests=IN_VERDICT),
    Mutant(PLANS, "Verified, counts", "Verified, not_on=frozenset(ScrubPath), counts", tests=IN_VERDICT),
    Mutant(CHANGES, "was_reset or record.scrubs.due_path is not ScrubPath.RESET", "True", tests=IN_RESETS),
    Mutant(CHANGES, "Trigger.FIRST_LOOK and scrubs.tested is not None", "Trigger.FIRST_LOOK", tests=IN_ACQUIRE),
    Mutant(CHANGES, "due = ScrubPath.SLOW  #", "due = ScrubPath.RESET  #", tests=IN_RESETS),
    Mutant(CHANGES, "ailments.path_after(quarantine.ailment)", "None", tests=IN_RESETS),
    Mutant("scrubber/core/next_scrub.py", "most_thorough(route, record.scrubs.due_path)", "route", tests=IN_RESETS),
    Mutant(
        PLANS, "Step.SCRATCH: Traits(Driver.FOR_MEMORY, Scratched)", f"Step.SCRATCH: {ON_NO_PATH}", tests=IN_VERDICT
    ),
    Mutant(
        PLANS, "Traits(Driver.FOR_MEMORY, Tested, counts=True, not_on=frozenset({_FAST}))", ON_NO_PATH, tests=COVERAGE
    ),
    Mutant("scrubber/cuda/clearing.py", "number < len(chosen) - 1", "False", tests=WRITTEN),
    Mutant(
        "scrubber/cuda/clearing.py", "memory.compare(pattern, c", "memory.compare(patterns.ZERO, c", tests=READ_BACK
    ),
    Mutant(VERDICT, "if patterns != wanted:", "if step is Step.CLEAR and patterns != wanted:", tests=COVERAGE),
    Mutant(RESULTS, " or (scrubs.pattern_left and clear.residue_bytes)", "", tests=IN_RESULTS),
    Mutant(RESULTS, " and clear.residue_bytes)", ")", tests=IN_RESULTS),
    Mutant(RESULTS, "scrubs.half_cleared or", "", tests=IN_RESULTS),
    Mutant(CHANGES, "receipt.leaves != ZEROS", "False", tests=IN_STATES),
    Mutant(RESULTS, "or reached != units:", "or reached < units - 1:", tests=IN_RESULTS),
    Mutant(RESULTS, "if not selftest.tests", "if False", tests=IN_RESULTS),
    Mutant(
        VERDICT,
        "Scratched(units_faulty=units) if units",
        "Scratched(units_faulty=units) if not units",
        tests=IN_VERDICT,
    ),
    Mutant(VERDICT, "Tested(deviating=units) if units", "Tested((), deviating=units) if units", tests=IN_VERDICT),
    Mutant(VERDICT, " or _not_reported(ran)", "", tests=IN_VERDICT),
    Mutant(RESULTS, "if not _is_reported(result):", "if result.findings is None:", tests=IN_RESULTS),
    Mutant(VERDICT, "if unsure and (ailment is not None or again)", "if unsure", tests=IN_VERDICT),
    Mutant(VERDICT, "    if facts.holders:\n        names", "    if False:\n        names", tests=IN_ACQUIRE),
    Mutant(VERDICT, "if facts.used_at > clear_began:", "if False:", tests=IN_ACQUIRE),
    Mutant(VERDICT, "_has_failed(record) if undecided else", "False if undecided else", tests=IN_VERDICT),
    Mutant(RESULTS, "if explained <= rest and", "if", tests=COVERAGE),
    Mutant(
        ACQUIRE,
        "if taken and recipient.until_release:",
        "if False:",
        tests=IN_ACQUIRE,
    ),
    Mutant(ACQUIRE, "not tenancy.acquired_for(owner)", "False", tests=IN_ACQUIRE),
    Mutant(OWNERSHIP, "and facts.holders == () and pod in", "and pod in", tests=IN_ACQUIRE),
    Mutant(OWNERSHIP, "and pod in (facts.assigned_pods or ())", "and pod is not None", tests=IN_ACQUIRE),
    Mutant(OWNERSHIP, "record.tenancy.allocations > named.containers", "False", tests=IN_START),
    Mutant(OWNERSHIP, "named.written < min(", "False and min(", tests=IN_START),
    Mutant(RECORD, "self.grant is not None and self.grant.until", "self.grant and self.grant.at", tests=IN_OWNERSHIP),
    Mutant(PROOF, "not in (None, record.incarnation.boot_id)", "is None", tests=IN_PROOF),
    Mutant(PROOF, "max(facts.observed_since, facts.used_at)", "facts.observed_since", tests=IN_PROOF),
    Mutant(PROOF, "max(facts.observed_since, facts.used_at)", "facts.used_at", tests=IN_PROOF),
    Mutant(PROOF, "receipt is not None and receipt.finished.uptime < facts.used_at", "False", tests=IN_USES),
    Mutant("scrubber/service/context.py", "if ended is not None", "if False", tests=IN_USES),
    Mutant(
        "scrubber/core/tenancy_upkeep.py",
        "return met and facts.holders == () and",
        "return met and",
        tests="tests/core/test_unannounced.py",
    ),
    Mutant(OBSERVED_SINCE, "if isinstance(now, Missed):", "if False:", tests=IN_OBSERVED_SINCE),
    Mutant(OBSERVED_SINCE, "if isinstance(before, Missed):", "if False:", tests=IN_OBSERVED_SINCE),
    Mutant(OBSERVED_SINCE, "if isinstance(now, NoUseCounter):", "if False:", tests=IN_USES),
    Mutant(OBSERVED_SINCE, "isinstance(reading, Missed)", "False", tests=IN_USES),
    Mutant(START, "pod == record.tenancy.last_owner and", "False and", tests=IN_START),
    Mutant(CHANGES, "tenancy.allocations if restart else", "", tests=IN_START),
    Mutant("scrubber/core/tenancies.py", "proven=not unproven", "proven=True", tests="tests/core/test_tenancies.py"),
    Mutant(OFFERING, "if facts.ledger_fault and", "if False and", tests=IN_OFFERING),
    Mutant(OFFERING, "if facts.withheld:", "if False:", tests=IN_OFFERING),
    Mutant(TENANT_REQUESTS, " if it.device not in waits}", "}", tests=f"{OUTLASTS}_process_that_ended_its_scrub"),
    Mutant(SCRUB_JOB, " and self.receipt is None", "", tests=f"{OUTLASTS}_use_of_what_it_had_scrubbed"),
    Mutant(SCRUB_JOB, "self._cancelled or", "", tests=f"{OUTLASTS}_scrub_that_was_cancelled"),
    Mutant(TENANT_REQUESTS, "except Exception as error:", "except BaseException as error:", tests=IN_OFFERS),
    Mutant(TENANT_REQUESTS, "await self._until_writable(request, error)", "raise", tests=IN_OFFERS),
    Mutant(OFFERING, "if facts.blocked and", "if False and", tests=IN_OFFERING),
    Mutant(
        OFFERING,
        "if record.health.quarantine is not None:  #",
        "if record.state is State.QUARANTINED:  #",
        tests=IN_OFFERING,
    ),
    Mutant(
        "scrubber/devices/simulated/simulated_gpu.py",
        "writes=not self._answer().skip_scratch",
        "writes=True",
        tests=ROSTER,
    ),
    Mutant("scrubber/devices/simulated/simulated_gpu.py", "writes=not faults.skip_clears", "writes=True", tests=ROSTER),
    Mutant(ON_DEVICE, "cleared.mismatch is None", "True", tests=ROSTER),
    Mutant("scrubber/jobs/path_run.py", "return step_results.judged(", "return (lambda it, _: it)(", tests=JOBS),
    Mutant(CHANGES, "number=tenancy.number + left", "number=tenancy.number", tests=IN_STATES),
    Mutant(CHANGES, 'tenancy.awaits != "" and not grant.at_start', "False", tests=IN_STATES),
    Mutant(CHANGES, "else tenancy.number + left", "else tenancy.number", tests=IN_STATES),
    Mutant(STANDSTILLS, "uptime - seen.reported >= every", "True", tests="tests/core/test_standstills.py"),
    Mutant("scrubber/ledger/outage.py", "if lasted >= LONG else None", "if lasted < 0 else None", tests=IN_LEDGER),
    Mutant(
        "scrubber/ledger/outage.py", "fault, began), stale=True)", "fault, began))", tests="tests/ledger/test_ledger.py"
    ),
    Mutant("scrubber/jobs/path_run.py", "is not None and done != self.bytes_done", "is not None", tests=IN_REPORT),
    Mutant(STUCK, "evict.findings.stuck or None", "evict.findings.stuck", tests=IN_SINCE),
    Mutant(OWNERSHIP, "if facts.holders is None:\n        return None", "if False:\n        pass", tests=IN_SINCE),
    Mutant(CHANGES, "record.scrubs if same else _forgiven(record.scrubs)", "_forgiven(record.scrubs)", tests=IN_SINCE),
    Mutant(TENANT_FILES, "beside(self._directory / name", "beside(folder / name", tests=IN_TENANT_FILES),
    Mutant(
        TENANT_FILES, 'record.tenancy.start_admitted or record.tenancy.awaits != ""', "False", tests=IN_TENANT_FILES
    ),
]

CHANGED = {*GENERATED_FROM, *(mutant.file for mutant in PLANTED)}

# Mutants that behave as the original, each with the reason. Where a test could, write the test instead.
EQUIVALENT: dict[str, str] = {
    "observation _always: True => False": "its row says what holds without it, and why",
    "offering _by_record: State.QUARANTINED => State.IN_USE": "its quarantine is answered above it",
}


def changes(node) -> Iterator[tuple[ast.expr, str]]:
    """What could be wrong at a node: the part of it that changes, and its new text."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in NEGATED:
            yield node, f"({ast.unparse(ast.Compare(left, [NEGATED[type(op)]()], [right]))})"
        case ast.BoolOp(op=op, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Attribute(value=ast.Name(id=kind), attr=name) if kind in ENUMS:
            members = [member.name for member in ENUMS[kind]]
            yield node, f"{kind}.{members[members.index(name) - 1]}"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.match_case(guard=ast.expr() as test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):  # those turn round by themselves
                yield test, f"(not {ast.unparse(test)})"


def reachable(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, except decorators (how a class is made) and f-strings (CPython 3.11 misplaces their parts)."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name != "decorator_list" and not isinstance(child, ast.JoinedStr):
                yield child
                yield from reachable(child)


def generated(file: str) -> Iterator[Mutant]:
    """Every mutant of a file."""
    text = (ROOT / file).read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()
    for top in ast.parse(text).body:
        for part, new in (change for node in reachable(top) for change in changes(node)):
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[(part.end_lineno or 0) - 1] + (part.end_col_offset or 0)
            old = raw[start:end].decode()
            nth = raw[:start].decode().count(old)
            yield Mutant(file, old, new, nth, where=getattr(top, "name", "table"))


def pytest_generate_tests(metafunc):
    if "mutant" in metafunc.fixturenames:
        mutants = list(PLANTED)
        if metafunc.config.getoption("--night"):
            mutants += [it for file in GENERATED_FROM for it in generated(file) if str(it) not in EQUIVALENT]
        metafunc.parametrize("mutant", mutants, ids=str)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the sources and of the tests that judge them."""
    # Another worker may remove a temporary file of bytecode before this one can copy it.
    tree, rubbish = tmp_path_factory.mktemp("tree"), shutil.ignore_patterns("house", "*.pyc.*")
    for room in (
        "autoclave",
        "access",
        "remnant",
        "containers",
        "scrubber",
        "scrub_api",
        "policies",
        "ground",
        "tests",
    ):
        shutil.copytree(ROOT / room, tree / room, ignore=rubbish)
    shutil.copy(ROOT / "pyproject.toml", tree)
    (ROOT / "build").mkdir(exist_ok=True)
    (tree / "build").symlink_to(ROOT / "build")  # stand-ins that are compiled already
    return tree


@pytest.fixture(scope="module")
def judge(copy):
    """The process that runs tests against the copy."""
    # To look for plugins takes a tenth of the time.
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    modules = [file.removesuffix(".py").replace("/", ".") for file in CHANGED]
    command = [sys.executable, "-X", "faulthandler", "-c", JUDGE, *modules]
    with subprocess.Popen(
        command, cwd=copy, env=env, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield Judge(copy, process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def tree(copy):
    """The copy, which a test leaves as it was: a mutant left behind would turn the tests red for the next one."""
    before = {file: (copy / file).read_bytes() for file in CHANGED}
    yield copy
    assert {file: (copy / file).read_bytes() for file in CHANGED} == before


@dataclass(frozen=True)
class Judge:
    """Runs tests in forks of one process."""

    tree: Path
    process: subprocess.Popen[bytes]

    def line(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def run(self, *files: Path, mutated: bool = True) -> tuple[int, str]:
        """How pytest ended, and its output. Tests that hang are made to print where they are."""
        options = ["-x", "-q", "--timeout=60", "-p", "no:cacheprovider", *PLUGINS]
        if mutated:
            options.append("--tb=no")
        # Without a directory of its own, pytest clears away at its end what others left on the machine.
        options += ["--basetemp", str(self.tree / "tmp")]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the judge has imported the plugins already
        output = self.tree / "output"
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = [str(output), mutated, [*options, *map(str, files)]]  # a mutant must leave no bytecode
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        child = self.line()
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], LONG)[0]:
            os.kill(child, signal.SIGABRT)
            os.kill(child, signal.SIGCONT)  # a stopped process must wake to die
            self.line()
            pytest.fail(f"the tests did not end within {LONG} s:\n{output.read_text()}")
        return self.line(), output.read_text()

    def judges(self, mutant: Mutant) -> tuple[int, str]:
        """Run the tests of a planted mutant, or all of the core's; first those that have the name of its file."""
        if mutant.tests:
            return self.run(self.tree / mutant.tests)
        first = f"test_{Path(mutant.file).stem}"
        return self.run(*sorted(self.tree.glob("tests/core/test_*.py"), key=lambda it: not it.name.startswith(first)))


def test_the_copy_is_what_is_judged(judge, tree):
    test = tree / "tests/test_places.py"
    places = [str(tree / place) for place in ("scrubber/core/model.py", "policies/match.py")]
    test.write_text(
        "from scrubber.core import model\nfrom policies import match\n\n"
        f"def test_places():\n    assert [model.__file__, match.__file__] == {places}\n"
    )
    ended, output = judge.run(test)
    test.unlink()
    assert ended == pytest.ExitCode.OK, output


@pytest.mark.usefixtures("tree")
def test_the_tests_pass_before_anything_is_changed(judge, request):
    files = {judge.tree / mutant.tests for mutant in PLANTED}
    if request.config.getoption("--night"):
        files |= set(judge.tree.glob("tests/core/test_*.py"))
    ended, output = judge.run(*sorted(files), mutated=False)
    assert ended == pytest.ExitCode.OK, output


def test_every_excused_mutant_still_exists():
    assert set(EQUIVALENT) <= {str(mutant) for file in GENERATED_FROM for mutant in generated(file)}


def test_a_mutant_turns_the_tests_red(judge, tree, mutant):
    if mutant.tests == WRITTEN and (lack := emulation.missing(FORM)):
        pytest.skip(lack)
    if mutant.tests.startswith((IN_ROUNDS, IN_FENCE, IN_GUARD, TRIALS)) and not ENTERS:
        pytest.skip("takes root, to make a pid namespace or a control group")
    with mutant.planted(tree):
        ended, output = judge.judges(mutant)
    assert ended in RED, f"{mutant} survived:\n{output}"
    assert re.search("^(FAILED|ERROR) tests/", output, re.MULTILINE), output
