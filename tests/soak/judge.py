"""What must not be, by what tenants, attackers and the kubelet have seen.

The judge does not ask the service. Each exception below is a case that docs/attacks.md or docs/noticed-late.md names as
left. With a fence there are fewer: who opens and closes a GPU is counted by the kernel, also while the service is away.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from demo.standins.kubelet import Kubelet
from scrubber.devices.simulated import layout
from tests.flows.node import Node
from tests.soak.hostile import BRIEF_USER, FOREIGN, Attacker, Hostile, Use, uptime
from tests.soak.tenant import BLOCK

SHORT = "short visit: a process opens and closes a GPU between two observations, and no pod has the GPU so far"
LATE = "a process of the host opens a GPU after the last question of the pod that has it"
UNOBSERVED = "nobody observed: the service was stopped, or lacked files, while a process came and went"
UNASKED = "a container started without PreStartContainer, after a restart of the kubelet"
BETWEEN = "a process of the host writes between clear and verify, both times: the GPU is quarantined"
DROPPED = "a pod that the kubelet has dropped starts after a third pod has had its GPU"
NAMELESS = "the fence cannot name the owner of a GPU, such as a claim: everybody can open it"
SLOW = "other programs of the machine make the search of /proc slow, and a GPU was in use until just now"
SAID = re.compile(r"(RESIDUE|WIPED|SEEN): (?:pod|attacker) (\S+) \(pid \d+\)")
WHOSE = re.compile(r"<([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})>")
OF_GRPC = re.compile(r"[IWE]\d{4} ")  # lines about connections and open files
# What service and plugin may call an error while everything around them is killed, and why.
EXPECTED = {
    "every device is unhealthy: the scrub service does not answer": "it was killed",
    "the kubelet's checkpoint names two pods for one device": "it lost its checkpoint, or forgot an Allocate (R8)",
    "cannot find the pod that is about to start": "the checkpoint was damaged",
}


@dataclass
class Judge:
    """Judges one history."""

    runtime: Hostile
    kubelet: Kubelet
    findings: list[str] = field(default_factory=list)
    excused: Counter[str] = field(default_factory=Counter)
    refuses: bool = False  # the fence keeps everybody off a GPU who was not given it
    put_back: bool = False  # the ledger became an older copy: it does not know who has a GPU
    noticed: set[str] = field(default_factory=set)  # names of processes that the service had noticed when they wrote
    unobserved: list[tuple[float, float]] = field(default_factory=list)  # uptimes from which to which
    # The pods that the kubelet has dropped, and whose start is on its way: how many starts their GPUs had before.
    late: dict[str, dict[str, int]] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)  # pods of claims, for whose start nobody is asked
    _known: set[str] = field(default_factory=set)
    _uses: list[Use] = field(default_factory=list)
    _errors: int = 0

    def look(self) -> None:
        """Judge all reports that came since the last call."""
        reports = "".join(self.runtime.words.reports())
        for what in self._new():
            said = SAID.search(what)
            if said is None:
                self.findings.append(f"fault of a tenant or attacker: {what}")
            else:
                self._judge(what, said[1], said[2])
        while self.runtime.company:
            pod, asked, attacker = self.runtime.company.pop()
            self.take(f"{pod.name} starts beside {attacker.what}", self._excuse(attacker, pod.uid, asked))
        self._judge_uses()
        while self.runtime.shut_out:
            pod, asked = self.runtime.shut_out.pop()
            if pod.uid not in self.late:  # the GPU belongs to the next one
                self.take(f"{pod.name} is kept off its own GPU", None if self.asked(pod.uid, asked) else UNASKED)
        while self.runtime.faults:
            fault = self.runtime.faults.pop()
            pid = re.search(r"\(pid \d+\)", fault)
            if pid is None or pid[0] not in reports:
                self.findings.append(f"a live process was ended: {self.named(fault)}")

    def _judge_uses(self) -> None:
        """A use by others is refused, or ends the proof: what comes next on the GPU starts on a newer one."""
        while len(self._uses) < len(self.runtime.uses):
            use = self.runtime.uses[len(self._uses)]
            self._uses.append(use)
            if self.refuses:
                self.take(f"{use.what} opens {use.gpu}, which refuses others", NAMELESS if use.open_to_all else None)
        while self.runtime.entries:
            entry = self.runtime.entries.pop()
            old = [it for it in self._uses if it.gpu == entry.gpu and entry.proven < it.opened < entry.asked]
            if old:
                excuse = None if self.asked(entry.pod.uid, entry.asked) else UNASKED
                self.take(
                    f"{entry.pod.name} starts on {entry.gpu} by a proof from before its use: {old[-1].what}", excuse
                )

    def used(self, gpu: str) -> float:
        """The uptime at which somebody last opened a GPU that was not given to him."""
        return max((it.opened for it in self._uses if it.gpu == gpu), default=0.0)

    def examine(self, gpu: str) -> bool:
        """Whether a GPU holds nothing: it is clean, and no process has it open."""
        memory = layout.find(self.runtime.simulated, gpu).memory.read_bytes()
        left = memory.lstrip(b"\0")
        if left:
            found = WHOSE.search(left[:BLOCK].decode("latin-1"))
            writer = next((it for it in self.runtime.attackers if found is not None and it.own == found[1]), None)
            excuse = self._excuse(writer, "", uptime()) if writer is not None else None
            if writer is not None and writer.kind == BRIEF_USER and not self.runtime.fenced:
                excuse = SHORT
            self.take(f"{gpu} is clean and holds {left[:BLOCK]!r} at offset {len(memory) - len(left):#x}", excuse)
        return not left

    def _new(self) -> Iterator[str]:
        for file in sorted(self.runtime.words.directory.iterdir()):
            if file.name.startswith("."):
                continue
            if file == self.runtime.words.errors:
                text = file.read_text()
                if text[self._errors :]:
                    yield text[self._errors :]
                self._errors = len(text)
            elif file.name not in self._known:
                self._known.add(file.name)
                yield file.read_text()

    def _judge(self, what: str, kind: str, who: str) -> None:
        found = WHOSE.search(what.partition("holds" if kind != "SEEN" else "sees")[2])
        attackers = {it.own: it for it in self.runtime.attackers}
        if kind == "SEEN":  # an attacker sees bytes of a pod, or of another attacker
            excuse = None
            if found is not None and found[1] in self.runtime.entered:
                excuse = self._excuse(attackers[who], found[1], self.runtime.entered[found[1]])
            elif found is not None and found[1] in attackers:
                excuse = SHORT if BRIEF_USER in (attackers[found[1]].kind, attackers[who].kind) else LATE
            self.take(f"leak: {what}", excuse)
            return
        if found is not None and found[1] in attackers and attackers[found[1]].pod == who:
            return  # a leftover of the pod itself
        word = "leak" if kind == "RESIDUE" or found is not None else "wipe"
        attacker = attackers.get(found[1]) if found is not None else None
        if attacker is not None:
            excuse = self._excuse(attacker, who, self.runtime.entered[who])
        else:
            excuse = DROPPED if self._third_pod_between(who, found[1] if found is not None else "") else None
            unasked = who not in self.noticed and not self.asked(who, self.runtime.entered[who])
            if word == "wipe" and self.put_back and unasked:
                excuse = UNASKED
        self.take(f"{word}: {what}", excuse)

    def _excuse(self, attacker: Attacker, pod: str, at: float) -> str | None:
        """Why bytes of an attacker may be on the GPU of a pod that asked at ``at``, and was let on."""
        last = (
            (attacker.gone or uptime()) if attacker.kind == BRIEF_USER else attacker.opened
        )  # it opens again and again
        if last > at:
            return LATE
        if not self.asked(pod, at):
            return UNASKED
        if self.runtime.fenced:
            return None
        until = attacker.gone or uptime()
        came_unseen = any(began < until and attacker.opened < ended for began, ended in self.unobserved)
        return UNOBSERVED if attacker.kind == FOREIGN and attacker.gone and came_unseen else None

    def _third_pod_between(self, who: str, other: str) -> bool:
        """Whether the kubelet has dropped one of these pods, and a third one has had its GPU since."""
        dropped = [self.late[pod] for pod in (who, other) if pod in self.late]
        had = self.runtime.had
        return any({*had[gpu][before:]} - {who, other} for gpus in dropped for gpu, before in gpus.items())

    def asked(self, pod: str, at: float) -> bool:
        """Whether PreStartContainer was asked for this start, where anybody is asked."""
        began = at - (uptime() - time.monotonic())
        calls = (it for it in self.kubelet.calls if it.method == "PreStartContainer" and it.outcome == "OK")
        return not pod or pod in self.late or pod in self.claimed or any(it.began >= began for it in calls)

    def take(self, what: str, excuse: str | None) -> None:
        """Record a finding, or count an exception."""
        if not excuse:
            self.findings.append(self.named(what))
        else:
            self.excused[excuse] += 1

    def named(self, words: str) -> str:
        """Replace the UIDs in a text by the names of pods and attackers."""
        for uid, name in self.runtime.names.items():
            words = words.replace(uid, f"[{name}]")
        for attacker in self.runtime.attackers:
            words = words.replace(attacker.own, f"[{attacker.what}]")
        return words.strip()


def complaints(node: Node) -> Iterator[str]:
    """Lines of both logs with an exception or an error that is not expected, and lines that are no lines of a log."""
    lines = [line for log in (node.stage.service.log, node.stage.plugin.log) for line in log.read_text().splitlines()]
    for line in lines:
        if not line.startswith("{"):
            if not OF_GRPC.match(line):
                yield line
            continue
        said = json.loads(line)
        error = said["level"] in ("error", "critical") and said["event"] not in EXPECTED
        if error or "exception" in said:
            yield line
