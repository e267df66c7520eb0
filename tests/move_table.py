"""What may happen to a node, and which arena plays it: the campaign, the histories of the service, the power cuts.

Each arena has deeds of its own for a move. An arena without a deed says why.

* ``tests/soak/campaign.py``: programs and processes, in real time. Its judge looks at memory and the kernel.
* ``tests/service/test_invariants.py``: the service on a simulated node, in virtual time. Its judge knows that node.
* ``tests/machine/cuts.py``: the disk of the service. Its judge knows the answers that had come, and reads what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_PLUGIN = "it has no plugin: its requests come from the test"
REAL_TIME = "its time always passes"
ONE_MACHINE = "its programs share the kernel, the clock and the disk of the machine that plays it"
ROWS = "it is about rows, and its writer is the only caller"


@dataclass(frozen=True)
class Move:
    """A move. Without a reason an arena plays it."""

    means: str
    weight: int = 0  # how often it comes in the campaign
    not_in_campaign: str = ""
    not_in_histories: str = ""
    not_in_cuts: str = ROWS


ATTACKS = {  # on a node whose programs run
    "pod": Move("a pod comes, works and ends; some of its containers crash", 80),
    "leftover": Move("a process outlives the container that started it", 20),
    "foreign": Move("a process uses a GPU that no pod has", 8),
    "comes_and_goes": Move("a process opens a GPU again and again, each time for a moment", 4),
    "host_process": Move("a process of the host opens a clean GPU, and stays", 8),
    "in_clear": Move("a process uses a GPU in the middle of a clear", 6),
    "before_clear": Move(
        "a process opens a GPU between evict and clear",
        6,
        not_in_histories="no time passes there, and its judge allows the service a look: tests/jobs/test_vetoes.py",
    ),
    "claim": Move("a claim takes a GPU, and its container starts", 8, not_in_cuts=""),
    "in_search": Move(
        "a process opens a GPU while the service searches for who has it",
        not_in_campaign="processes come and go at any time there",
    ),
    "importer": Move("a process of another pod has the memory of a pod open", 3),
    "doubled": Move("the kubelet drops a pod whose start is on its way, and gives its GPU to the next", 8),
    "stale": Move("the kubelet's checkpoint is an older one, or damaged", 3),
    "list": Move(
        "the kubelet forgets an Allocate that is under way",
        3,
        not_in_histories="it has no kubelet: of an Allocate the service sees the request alone",
    ),
    "streams": Move("a caller opens more Watch streams than there are places", 2, not_in_histories="it has no server"),
    "order": Move("a person wants a GPU scrubbed, in whatever state it is", 3),
    "stall": Move("a clear stands still for a while", 4),
}
FAULTS = {  # on one whose programs are in trouble, too
    "kubelet_restart": Move("the kubelet restarts; meanwhile containers may start without a question", 4),
    "keep": Move("somebody copies the directory of the service", 2, not_in_histories="it is for `rollback`"),
    "rollback": Move(
        "the directory of the service becomes an older copy",
        4,
        not_in_histories="its judge knows what the service has written, and would demand what is lost",
    ),
    "service_end": Move("the service is killed or stopped, and starts again", 4),
    "service_stop": Move(
        "the service stands still for a while",
        3,
        not_in_histories="the driver of its node counts each use, also then: tests/service/test_monitor.py",
    ),
    "plugin_end": Move("the plugin is killed or stopped: its callers give up", 3),
    "plugin_stop": Move("the plugin stands still for a while", 2, not_in_histories=NO_PLUGIN),
    "shortage": Move("the service can open no more files: it cannot search for processes", 3),
    "quarantine": Move("a person takes a GPU out, and brings it back", 4, not_in_cuts=""),
}
ASKING = {  # on one with a fence, of those who open a GPU that is not theirs
    "asks": Move("processes of the host, and of pods that had the GPU before, open it", 12),
    "asks_early": Move("between Allocate and PreStartContainer somebody opens a GPU, which is nobody's", 6),
    "asks_late": Move("between the end of a pod and the clear, a process in the group of that pod opens its GPU", 3),
    "flood": Move(
        "somebody opens a GPU that is not theirs as often as it can",
        4,
        not_in_histories="a look-up takes no time there: tests/fence/test_guard.py",
    ),
    "asks_while_away": Move("somebody opens a clean GPU while the service is down", 4),
}
OTHERS = {
    "time": Move("nothing but time passes", not_in_campaign=REAL_TIME, not_in_cuts=REAL_TIME),
    "other_claim": Move(
        "a claim asks for the GPU of another claim, which has not been given back",
        not_in_campaign="the refusal is an answer of the service, which its judge does not ask",
    ),
    "distrust": Move("a caller calls a GPU unhealthy", not_in_campaign="it runs no plugin of the vendor"),
    "policy": Move(
        "another policy is loaded", not_in_campaign="what its judge excuses depends on the policy of the history"
    ),
    "fault": Move(
        "a GPU or its driver fails in one of many ways",
        not_in_campaign="after `rollback` the service would find the fault again; a clear that hangs is `stall`",
    ),
    "heal": Move("a fault ends", not_in_campaign="each move ends the fault that it has begun"),
    "disk": Move(
        "rows cannot be written, or the driver or the use counter does not answer", not_in_campaign=ONE_MACHINE
    ),
    "reboot": Move("the node reboots, reloads its driver or sets its clock", not_in_campaign=ONE_MACHINE),
    "power_cut": Move("the service ends in the middle of its writes", not_in_campaign=ONE_MACHINE, not_in_cuts=""),
}
MOVES = ATTACKS | FAULTS | ASKING | OTHERS
