"""``kubectl autoclave``, with a stand-in for kubectl; and what it asks the API server, with the real kubectl."""

import json
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import click
import pytest
from ruamel.yaml import YAML

from autoclave import cli
from tests.deploy import manifests
from tests.patience import WITHIN

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy/kubectl/kubectl-autoclave"
COMPLETION = SCRIPT.with_name("kubectl_complete-autoclave")
NODES = ("gpu-1", "gpu-2", "cpu-1")
MANY = tuple(f"node-{n}" for n in range(40))

# It logs its arguments, answers questions about pods and nodes from a file, and ends an exec with the verb's exit code.
STAND_IN = f"""#!{sys.executable}
import json, os, sys
cluster = json.load(open(os.environ["CLUSTER"]))
said = sys.argv[1:]
with open(os.environ["CLUSTER"] + ".log", "a") as log:
    log.write(json.dumps(said) + "\\n")
flags = dict(word[2:].split("=", 1) for word in said if word.startswith("--") and "=" in word)
if "exec" in said and {{"--no-headers", "list", "key", "--output=json"}} & {{*said}}:
    rows = cluster["rows"][said[2]]
    if rows == "late":
        open(os.environ["CLUSTER"] + ".late", "w").write(str(os.getpid()))
        sys.stdin.close(), __import__("signal").pause()
    if rows in ("waits", "wakes"):  # the first one for the other
        open(os.environ["CLUSTER"] + ".pipe", "r" if rows == "waits" else "w").close()
    if rows == "counted":  # until the test has counted who asks beside it
        import socket
        held = socket.socket(socket.AF_UNIX)
        held.connect(os.environ["CLUSTER"] + ".socket"), held.recv(1)
        rows = "- - 1 1 1 refused refused x"
    if rows.startswith("autoclave: "):
        print("namespace  half  1  1  0  refused  refused  cut off")
        sys.exit(rows + "\\ncommand terminated with exit code 1")
    print("autoclave: a gap", file=sys.stderr) if {{"list", "plan"}} & {{*said}} else None
    sys.exit() if rows == "nothing" else None
    print(rows) if rows else sys.exit("Error from server (Forbidden): pods/exec\\x1b")
if "exec" in said:
    print(cluster["says"], end="")
    print(cluster["says"], end="", file=sys.stderr)
    sys.exit(cluster["exit"])
if cluster["refuses"] in said:
    sys.exit("Error from server (Forbidden)")
if "nodes" in said and "AutoclaveDevicesHealthy" in flags.get("output", ""):
    print("\\n".join(f"{{name}} {{cluster['condition'].strip()}}" for name in said[4:] if cluster["condition"]))
    sys.exit()
if "nodes" in said and "selector" in flags:
    print("\\n".join(f"node/{{name}}" for name in cluster["nodes"]) if flags["selector"] == "pool=gpu" else "")
    sys.exit()
if "nodes" in said:
    print("\\n".join(f"node/{{name}}" for name in cluster["nodes"] if name == said[-1]), end="")
    sys.exit()
wanted = dict(word.split("=") for word in flags["selector"].split(","))
if "daemonsets" in said:
    chosen = [it for it in cluster["sets"] if wanted.items() <= it["labels"].items()]
    chosen = [it["line"] for it in chosen if it["namespace"] == flags.get("namespace", it["namespace"])]
    print("\\n".join(sorted(set(chosen))))
    sys.exit()
for pod in cluster["pods"]:
    here = flags.get("field-selector", "spec.nodeName=" + pod["node"]) == "spec.nodeName=" + pod["node"]
    named = flags.get("namespace", pod["namespace"]) == pod["namespace"]
    if here and named and wanted.items() <= pod["labels"].items():
        print(pod["line"] if "phase" in flags["output"] else pod["node"])
"""


@dataclass(frozen=True)
class Pod:
    """A pod of the cluster."""

    name: str
    node: str = "gpu-1"
    namespace: str = "autoclave"
    release: str = "autoclave"
    component: str = "scrubber"
    deleted: str = ""
    phase: str = "Running"
    started: str = "2026-11-22T03:00:00Z"
    ready: str = "true"
    waiting: str = ""
    owner: str = ""
    account: str = "autoclave-scrubber"
    host_pid: bool = True

    def labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/" + key: value for key, value in
                (("name", "autoclave"), ("component", self.component), ("instance", self.release))}  # fmt: skip

    def line(self) -> str:
        about = f"{self.namespace}|{self.name}|{self.release}|{self.deleted}|{self.node}"
        made = f"DaemonSet/{self.owner or self.uid()}|{self.account}|{str(self.host_pid).lower()}"
        return f"{about}|{made}|{self.phase}|{self.started}|{self.ready}|{self.waiting}"

    def uid(self) -> str:
        """Of the DaemonSet of its release."""
        return f"{self.namespace}-{self.release}-{self.component}"

    def made_by(self) -> dict[str, object]:
        line = f"{self.namespace}|DaemonSet/{self.uid()}|autoclave-scrubber"
        return {"namespace": self.namespace, "labels": self.labels(), "line": line}

    def document(self) -> dict[str, object]:
        """As the API server says it."""
        state = {"waiting": {"reason": self.waiting}} if self.waiting else {"running": {"startedAt": self.started}}
        owners = [{"kind": "Job", "uid": "x"}, {"kind": "DaemonSet", "uid": self.uid(), "controller": True}]
        about = {"namespace": self.namespace, "name": self.name, "labels": self.labels(), "ownerReferences": owners}
        about |= {"deletionTimestamp": self.deleted} if self.deleted else {}
        statuses = [{"name": "other", "ready": False, "state": {}},
                    {"name": "scrubber", "ready": self.ready == "true", "state": state}]  # fmt: skip
        spec = {"nodeName": self.node, "serviceAccountName": self.account, "hostPID": self.host_pid}
        return {"kind": "Pod", "apiVersion": "v1", "metadata": about, "spec": spec,
                "status": {"phase": self.phase, "containerStatuses": statuses}}  # fmt: skip


PLAIN, LATER = Pod("scrubber-a"), "2026-11-22T03:00:01Z"
FORGED = {
    "of no owner": Pod("forged", owner="-"),
    "of another account": Pod("forged", account="default"),
    "without the processes of the node": Pod("forged", host_pid=False),
    "of another namespace": Pod("forged", namespace="team-a"),
}
CLUSTER = (PLAIN, Pod("scrubber-b", node="gpu-2"), Pod("plugin-a", component="plugin"))


class Shell:
    """A shell with a cluster."""

    def __init__(self, root: Path) -> None:
        self.cluster = root / "cluster"
        programs = root / "programs"
        programs.mkdir()
        (programs / "kubectl").write_text(STAND_IN)
        (programs / "kubectl").chmod(0o755)
        self.environment = {"PATH": f"{programs}:{os.defpath}", "CLUSTER": str(self.cluster)}

    def has(
        self, *pods: Pod, code: int = 0, refuses: str = "", condition: str = "", says: str = "",
        sets: tuple[Pod, ...] = (PLAIN,), **rows: str,
    ) -> None:  # fmt: skip
        """Pods, and a DaemonSet for each of ``sets``."""
        listed = [{"labels": pod.labels(), "line": pod.line(), **vars(pod)} for pod in pods]
        rows = {name.replace("_", "-"): text for name, text in rows.items()}
        about = {"nodes": NODES, "exit": code, "refuses": refuses, "condition": condition, "says": says, "rows": rows}
        made = [pod.made_by() for pod in sets]
        self.cluster.write_text(json.dumps({"pods": listed, "sets": made, **about}))

    def run(self, *words: str, script: Path = SCRIPT) -> tuple[int, str, str]:
        run = subprocess.run(
            [script, *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return run.returncode, run.stdout, run.stderr

    def kubectl(self, *words: str) -> None:
        """Run the stand-in by itself."""
        subprocess.run(["kubectl", *words], env=self.environment, stdin=subprocess.DEVNULL, check=True)

    def asked(self) -> list[list[str]]:
        """The arguments of each call of kubectl."""
        log = Path(f"{self.cluster}.log")
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def shell(tmp_path):
    made = Shell(tmp_path)
    made.has(*CLUSTER)
    return made


EXEC = ["exec", "--namespace=autoclave", "scrubber-a", "--container=scrubber", "--", "autoclave"]


@pytest.mark.parametrize("node", ["gpu-1", "node/gpu-1"])
def test_a_verb_runs_in_the_scrubber_pod_of_the_node(shell, node):
    assert shell.run(node, "explain", "0", "-o", "json") == (0, "", "")
    assert shell.asked()[-1] == [*EXEC, "explain", "0", "-o", "json"]
    assert len(shell.asked()) == 3


@pytest.mark.parametrize("flags", [(), ("-n", "autoclave")])
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_no_verb_runs_in_a_pod_of_a_tenant(shell, forged, flags):
    """Also while the pod of the node is replaced."""
    shell.has(forged, forged=FREE)
    code, _, problem = shell.run(*flags, "gpu-1", "quarantine", "0", "--reason", "x")
    assert (code, "cannot find a pod of the scrubber on node gpu-1 in namespace autoclave" in problem) == (3, True)
    assert ("pod autoclave/forged has the labels" in problem) == (forged.namespace == "autoclave")
    assert shell.run(*flags, "status", "-A")[:2] == (3, "")
    assert not [words for words in shell.asked() if "exec" in words]
    shell.has(PLAIN, forged)
    assert shell.run(*flags, "gpu-1", "status")[0] == 0
    assert shell.asked()[-1] == [*EXEC, "status"]


@pytest.mark.parametrize("words", [("gpu-1", "quarantine", "0"), ("status", "-A")])
def test_with_daemonsets_in_two_namespaces_one_must_be_named(shell, words):
    theirs = Pod("theirs", namespace="team-a")
    shell.has(theirs, sets=(PLAIN, theirs))
    code, out, problem = shell.run(*words)
    assert (code, out) == (2, "")
    assert "cannot choose a namespace: DaemonSets in autoclave team-a have the labels of the scrubber; name" in problem
    assert not [asked for asked in shell.asked() if "exec" in asked]


@pytest.mark.parametrize("code", [1, 2, 3, 137])
def test_the_exit_code_is_that_of_the_verb(shell, code):
    shell.has(*CLUSTER, code=code)
    assert shell.run("gpu-1", "scrub", "0")[0] == code


def test_flags_of_kubectl_are_passed_on_to_every_call(shell):
    flags = ["--context", "prod eu", "--kubeconfig=/x y", "-s", "https://api"]
    assert shell.run(*flags, "gpu-1", "status")[0] == 0
    for words in shell.asked():
        assert words[:3] == ["--context=prod eu", "--kubeconfig=/x y", "--server=https://api"]


def test_words_of_the_verb_arrive_as_they_were_typed(shell):
    words = ["quarantine", "0", "--reason", "a b  *\nc", "-n", "", "--context=x"]
    assert shell.run("gpu-1", *words)[0] == 0
    assert shell.asked()[-1] == [*EXEC, *words]


def test_one_of_two_releases_on_a_node_is_chosen(shell):
    second, elsewhere = Pod("scrubber-s", release="second"), Pod("scrubber-t", namespace="trial", release="third")
    shell.has(PLAIN, second, elsewhere, sets=(PLAIN, second, elsewhere))
    code, _, problem = shell.run("-n", "autoclave", "gpu-1", "status")
    assert code == 2
    assert "autoclave/scrubber-a of release autoclave\n" in problem
    assert "autoclave/scrubber-s of release second\n" in problem
    assert not [words for words in shell.asked() if "exec" in words]
    for flags, namespace, pod in (
        (["-n", "trial"], "trial", "scrubber-t"), (["--namespace=trial"], "trial", "scrubber-t"),
        (["--release", "second"], "autoclave", "scrubber-s"), (["--release=third"], "trial", "scrubber-t"),
    ):  # fmt: skip
        assert shell.run(*flags, "gpu-1", "status")[0] == 0
        assert shell.asked()[-1][:3] == ["exec", f"--namespace={namespace}", pod]


def test_of_two_pods_in_an_update_the_newer_is_asked(shell):
    """Both pods of the node reach the service. One that still pulls its image can run no verb."""
    new = replace(PLAIN, name="scrubber-new", phase="Pending", started="", ready="false", waiting="PodInitializing")
    for after, asked in ((new, "scrubber-a"), (replace(PLAIN, name="scrubber-new", started=LATER), "scrubber-new")):
        for pods in ((PLAIN, after), (after, PLAIN)):
            shell.has(*pods)
            assert shell.run("gpu-1", "status") == (0, "", "")
            assert shell.asked()[-1][:3] == ["exec", "--namespace=autoclave", asked]


def test_the_successor_of_a_deleted_pod_is_asked(shell):
    ending = replace(PLAIN, name="scrubber-old", deleted="2026-11-22T03:00:00Z")
    shell.has(ending, PLAIN)
    assert shell.run("gpu-1", "status") == (0, "", "")
    assert shell.asked()[-1] == [*EXEC, "status"]


def test_a_pod_that_is_not_ready_is_asked(shell):
    """The service is not ready when its ledger cannot be written: that is when a person asks."""
    shell.has(replace(PLAIN, ready="false"))
    assert shell.run("gpu-1", "doctor") == (
        0, "", "kubectl autoclave: pod autoclave/scrubber-a is not ready; the verb runs anyway\n",
    )  # fmt: skip
    assert shell.asked()[-1] == [*EXEC, "doctor"]


FREE = "0    GPU-aa    clean        5m   yes      -\n10   GPU-ab  scrubbing  1s  no  fast path: clear 3%"
SICK = "0    GPU-ba    quarantined  1h   no       xid: xid 79 was reported"
SEVERAL = """\
NODE   GPU  UUID    STATE        FOR  HEALTHY  NOTE
gpu-2  0    GPU-ba  quarantined  1h   no       xid: xid 79 was reported
gpu-1  10   GPU-ab  scrubbing    1s   no       fast path: clear 3%
gpu-1  0    GPU-aa  clean        5m   yes      -
"""


def test_all_nodes_are_shown_with_their_trouble_first(shell):
    shell.has(*CLUSTER, scrubber_a=FREE, scrubber_b=SICK)
    assert shell.run("status", "-A", "--unhealthy") == shell.run("-A", "status", "--unhealthy") == (0, SEVERAL, "")
    assert [asked[-2:] for asked in shell.asked() if "exec" in asked] == [["--no-headers", "--unhealthy"]] * 4


def test_nodes_without_an_answer_are_named_with_their_condition(shell):
    shell.has(*CLUSTER, scrubber_a=FREE, scrubber_b="", condition="False, SomeDevicesOut: 1 of 8 devices is out")
    code, out, said = shell.run("status", "-l", "pool=gpu")
    assert (code, len(out.splitlines())) == (3, 3)
    out_of = "Its condition is False, SomeDevicesOut: 1 of 8 devices is out"
    refused, missing = said.splitlines()
    forbidden = "Error from server (Forbidden): pods/exec"
    assert refused == f"kubectl autoclave: no status of node gpu-2: {forbidden}. {out_of}"
    assert missing.startswith(
        "kubectl autoclave: no status of node cpu-1: cannot find a pod of the scrubber on node cpu-1"
    )
    assert missing.endswith(out_of)


HOSTILE = "\x1b]0;owned\x07\x1b[2Ja\r\x9b\u0085b\u202f\u00fc\tc\x7f\n"
HARMLESS = "]0;owned[2Jab\u202f\u00fc\tc\n"


def test_what_a_node_says_brings_no_control_characters(shell):
    shell.has(*CLUSTER, scrubber_a=f"0 GPU-a clean 1s yes {HOSTILE}", scrubber_b="", condition=HOSTILE)
    _, out, problem = shell.run("status", "-A")
    assert out.endswith(f"yes      {HARMLESS}")
    assert problem.endswith(f"(Forbidden): pods/exec. Its condition is {HARMLESS}")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b"a\x9b31mb", b"a31mb"),
        (b"\x9b\xff\xc3 \xe2\x80", b" "),
        ("a\u202eb\u2066c\u200bd\u2028e\ufefff\U000e0041".encode(), b"abcdef"),
        (b"\xe2\xc2\x9b\x80\xaea \xc2\x07\x9bb \xe0\x82\x9bc", b"a b c"),  # what is left makes no new character
        ("\u04db\u00fc\u202f\u4e2d\U0001f600".encode(), "\u04db\u00fc\u202f\u4e2d\U0001f600".encode()),
    ],
    ids=["a byte", "not utf-8", "invisible", "pieces", "letters"],
)
def test_a_terminal_gets_visible_characters_only(said, shown):
    text = SCRIPT.read_text()
    filtering = text[text.index("CONTROL=$(") : text.index("to_terminal()")] + "visible"
    run = subprocess.run(["sh", "-c", filtering], input=said + b"\n", capture_output=True, check=True)
    assert (run.stdout, run.stderr) == (shown + b"\n", b"")


def test_a_node_that_is_late_holds_up_no_other(shell):
    shell.has(*CLUSTER, scrubber_a="late", scrubber_b=SICK)
    code, out, said = shell.run("status", "-A", "--within", "1")
    assert (code, out.splitlines()[1]) == (3, SEVERAL.splitlines()[1])
    assert said == "kubectl autoclave: no status of node gpu-1: no answer within 1 seconds\n"
    try:
        ended = os.pidfd_open(int(Path(f"{shell.cluster}.late").read_text()))
    except ProcessLookupError:
        return
    assert select.select([ended], [], [], WITHIN)[0], "kubectl goes on"
    os.close(ended)


def test_a_silent_node_leaves_its_place_to_the_next_one(shell):
    """Sixteen are asked at a time. Else each group of nodes would wait for its slowest one."""
    os.mkfifo(f"{shell.cluster}.pipe")
    answers: dict[str, Any] = dict.fromkeys(MANY, FREE) | {MANY[0]: "waits", MANY[-1]: "wakes"}
    shell.has(*(Pod(name, node=name) for name in MANY), **answers)
    code, _, said = shell.run("status", "--node", ",".join(MANY))
    assert (code, said) == (0, "")


def test_silent_nodes_are_named_on_one_line(shell):
    shell.has(*CLUSTER, scrubber_a="", scrubber_b="", condition="True, AllDevicesHealthy: no device of 8 is out")
    said = "2 nodes (gpu-1, gpu-2): Error from server (Forbidden): pods/exec. Their condition is True, AllDevices"
    assert said in shell.run("status", "-A")[2]
    assert len(shell.run("status", "-A")[2].splitlines()) == 1


def test_the_status_of_all_nodes_is_one_document(shell):
    """With what each node has printed, and the names of those that are silent."""
    shell.has(*CLUSTER, scrubber_a='{\n  "kind": "DeviceStatusList"\n}', scrubber_b="")
    code, out, _ = shell.run("status", "-A", "--state", "clean", "-o", "json")
    items = [{"node": "gpu-1", "status": {"kind": "DeviceStatusList"}}]
    document = {"apiVersion": "autoclave/v1", "kind": "NodeStatusList", "items": items, "silent": ["gpu-2"]}
    assert (code, json.loads(out)) == (3, document)
    assert [*EXEC, "status", "--output=json", "--state=clean"] in shell.asked()


ONE = """\
namespace  monitoring         8  40  0  exempt   exempt   dcgm exporter ]
namespace  gpu-operator       8   9  0  exempt   exempt   nv-hostengine
unit       a\\x2d1.service  1   2  0  counted  refused  nvtop
unknown    -                  1   2  0  unknown  refused  x"""
OTHER = """\
namespace  monitoring  8  2  1  refused  refused  dcgm exporter ]
namespace  monitoring  8  1  0  refused  refused  other
namespace  no: ns'     8  1  0  refused  refused  hostile"""
PLAN = """\
# KIND       NAME            NODES  ASKED  REFUSED  HOLD     REFUSE   PROGRAM
# namespace  monitoring      2      42     1        refused  refused  dcgm exporter ]
# namespace  gpu-operator    1      9      0        exempt   exempt   nv-hostengine
# unit       a\\x2d1.service  1      2      0        counted  refused  nvtop
# unknown    -               1      2      0        unknown  refused  x
# namespace  monitoring      1      1      0        refused  refused  other
#
# 5 programs on 2 nodes asked for GPUs that were not given to them.
# ASKED and REFUSED count open attempts: each opening of a GPU is two or three of them.
# Only a namespace or a unit can be exempt. Take the `# ` away in front of each that you exempt, and keep the others.
# Nobody else gets a GPU that a program keeps open, exempt or counted. A bystander may keep it open: it is of NVIDIA,
# or in evict.bystanders.
# Then give this file to helm upgrade: -f FILE. It replaces your two lists of these names, and repeats their entries.
policy:
  operatorNamespaces: [  # pods of all others are refused, by `hold` too; no tenant may create pods in these
    # 'monitoring',  # dcgm exporter ], other, on 2 nodes
    'gpu-operator',  # nv-hostengine, on 1 node
  ]
  exempt: [  # `refuse` refuses all other units; `hold` refuses no unit
    # 'a\\x2d1.service',  # nvtop, on 1 node
  ]
"""


def test_the_plan_of_all_nodes_is_a_file_of_values(shell):
    """It lets in whom the policy lets in today, and is valid as it is printed."""
    shell.has(*CLUSTER, scrubber_a=ONE, scrubber_b=OTHER.rpartition("\n")[0])
    gaps = "kubectl autoclave: fence plan of 2 nodes (gpu-1, gpu-2): a gap\n"
    assert shell.run("fence", "plan", "-A") == (0, PLAN, gaps)
    assert [*EXEC, "fence", "plan", "--no-headers"] in shell.asked()
    policy = YAML(typ="safe", pure=True).load(PLAN)["policy"]
    assert policy == {"operatorNamespaces": ["gpu-operator"], "exempt": []}
    chosen = YAML(typ="safe", pure=True).load(PLAN.replace("# '", "'"))["policy"]
    assert (chosen["operatorNamespaces"], chosen["exempt"]) == (["monitoring", "gpu-operator"], ["a\\x2d1.service"])


NAMED = """\
namespace  monitoring         1  2  0  exempt   exempt   dcgm
unit       agent*.scope       1  2  0  exempt   exempt   x
namespace  nvidia-plugin      0  0  0  exempt   exempt   -
namespace  gpu-operator       1  2  0  bystander  bystander  dcgm
namespace  site               1  2  0  refused    refused    dcgm
unit       crio-conmon-*.scope  0  0  0  exempt   exempt   -"""


def test_the_plan_repeats_names_from_which_no_program_asked(shell):
    """Helm replaces a list as a whole. A pattern comes from the values alone: a program can choose a group's name."""
    shell.has(*CLUSTER, scrubber_a=NAMED, scrubber_b=NAMED.splitlines()[2])
    values = shell.run("fence", "plan", "-A")[1]
    policy = YAML(typ="safe", pure=True).load(values)["policy"]
    names = ["nvidia-plugin", "gpu-operator", "monitoring"]
    assert policy == {"operatorNamespaces": names, "exempt": ["crio-conmon-*.scope"]}
    assert "# 4 programs on 2 nodes asked for GPUs" in values
    assert "    'nvidia-plugin',  # no program asked, on 2 nodes\n" in values


def test_no_name_that_a_program_has_chosen_becomes_a_value(shell):
    shell.has(*CLUSTER, scrubber_a=OTHER, scrubber_b="namespace  x'],a  1  1  1  exempt  exempt  y")
    values = shell.run("fence", "plan", "-A")[1]
    assert YAML(typ="safe", pure=True).load(values)["policy"]["operatorNamespaces"] == []


def test_a_node_without_a_plan_is_named_with_its_reason(shell):
    shell.has(*CLUSTER, scrubber_a="autoclave: no fence counts who opens 8 GPUs", scrubber_b=OTHER)
    code, out, said = shell.run("fence", "plan", "-A")
    assert (code, "on 1 node asked" in out, "half" in out) == (3, True, False)
    assert "no fence plan of node gpu-1: autoclave: no fence counts who opens 8 GPUs\n" in said
    shell.has(*CLUSTER, scrubber_a="nothing", scrubber_b="")
    none = "# On the nodes that answered, no program asked for a GPU that was not given to it.\n"
    assert shell.run("fence", "plan", "-A")[1] == none
    shell.has(*CLUSTER, scrubber_a="", scrubber_b="")
    code, out, said = shell.run("fence", "plan", "-A")
    assert (code, out) == (3, "# No node answered.\n")
    assert [line for line in said.splitlines() if not line.startswith("kubectl autoclave: ")] == []


def test_the_plans_of_all_nodes_are_one_document(shell):
    shell.has(*CLUSTER, scrubber_a='{"kind": "FencePlanList"}', scrubber_b="")
    items = [{"node": "gpu-1", "plan": {"kind": "FencePlanList"}}]
    document = {"apiVersion": "autoclave/v1", "kind": "NodeFencePlanList", "items": items, "silent": ["gpu-2"]}
    code, out, _ = shell.run("fence", "plan", "-A", "-o", "json")
    assert (code, json.loads(out)) == (3, document)


def test_sixteen_nodes_are_asked_at_a_time(shell):
    """So that 500 nodes take a minute if each takes two seconds. None is answered before sixteen have asked."""
    shell.has(*(Pod(name, node=name) for name in MANY), **dict.fromkeys(MANY, "counted"))
    most, left = 0, len(MANY)
    with ThreadPoolExecutor(1) as beside, socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{shell.cluster}.socket")
        door.listen(len(MANY))
        door.settimeout(WITHIN)
        run = beside.submit(shell.run, "fence", "plan", "-A", "--within", "600")
        while left:
            with ExitStack() as held:
                asking = [held.enter_context(door.accept()[0]) for _ in range(min(16, left))]
                shell.kubectl("get", "nodes", "none")  # whoever was started before this has asked
                while select.select([door], [], [], 0)[0]:
                    asking.append(held.enter_context(door.accept()[0]))
            most, left = max(most, len(asking)), left - len(asking)
        code, out, _ = run.result()
    assert (code, most, f" {len(MANY)} nodes asked" in out) == (0, 16, True)


def test_the_public_keys_of_all_nodes_are_lines(shell):
    shell.has(*CLUSTER, scrubber_a="autoclave/gpu-1+x+y", scrubber_b="autoclave/gpu-2+x+y")
    assert shell.run("receipt", "key", "-A") == (0, "autoclave/gpu-1+x+y\nautoclave/gpu-2+x+y\n", "")
    assert [*EXEC, "receipt", "key", "--output=vkey", "--node-name=gpu-1"] in shell.asked()


LISTED = ("receipt", "list", "-A", "--since", "2026-11-20 09:00", "--until=1d")
ASKED = ["--since=2026-11-20 09:00", "--until=1d"]
GAPS = "".join(f"kubectl autoclave: node gpu-{n}: autoclave: a gap\n" for n in (1, 2))


def test_handovers_of_all_nodes_have_one_line_of_names(shell):
    shell.has(*CLUSTER, scrubber_a="node,began\ngpu-1,1\ngpu-1,2", scrubber_b="node,began\ngpu-2,1")
    assert shell.run(*LISTED) == (0, "node,began\ngpu-1,1\ngpu-1,2\ngpu-2,1\n", GAPS)
    words = ["receipt", "list", "--output=csv", *ASKED, "--node-name=gpu-1"]
    assert [*EXEC, *words] in shell.asked()
    assert shell.run("--node", "gpu-1", *LISTED[:2], "-o", "csv")[1] == "node,began\ngpu-1,1\ngpu-1,2\n"


def test_handovers_of_all_nodes_are_one_document(shell):
    shell.has(*CLUSTER, scrubber_a='{"n": 1}\n{"n": 2}', scrubber_b='{"n": 3}')
    code, out, said = shell.run(*LISTED, "-o", "json")
    document = {"apiVersion": "autoclave/v1", "kind": "HandoverList", "items": [{"n": 1}, {"n": 2}, {"n": 3}]}
    assert (code, json.loads(out), said) == (0, document, GAPS)
    assert [asked[-4] for asked in shell.asked() if "exec" in asked] == ["--output=jsonl"] * 2


def test_handovers_of_a_silent_node_are_missed_by_name(shell):
    shell.has(*CLUSTER, scrubber_a="node\ngpu-1", scrubber_b="")
    code, out, said = shell.run(*LISTED)
    assert (code, out) == (3, "node\ngpu-1\n")
    assert "kubectl autoclave: no receipt list of node gpu-2: Error from server (Forbidden): pods/exec" in said
    shell.has(replace(PLAIN, node="gpu-3"))
    assert shell.run("receipt", "list", "--node=gpu-1,gpu-3")[0] == 3


PROBLEMS = {
    "status of no node": ((), ("status",), 2, "which node you mean: 'kubectl autoclave NODE status', or 'status -A' "),
    "a verb on all nodes": ((), ("-A", "scrub", "--all"), 2, "run scrub on several nodes: only 'status', 'fence "),
    "a fence of all nodes": ((), ("fence", "-A", "off"), 2, "cannot run 'fence off' on several nodes: only 'fence"),
    "a plan of no node": ((), ("fence", "plan"), 2, "'kubectl autoclave NODE fence plan', or 'fence plan -A' for all"),
    "a run directory of all nodes": ((), ("fence", "plan", "-A", "--run-dir=x"), 2, "-A, -l and --node, only -o"),
    "a wide table of all nodes": ((), ("status", "-A", "-o", "wide"), 2, "cannot print -o wide: table or json"),
    "a next key of all nodes": ((), ("receipt", "key", "-A", "--rotate"), 2, "cannot use '--rotate' for several nodes"),
    "receipts of no node": ((), ("receipt", "list"), 2, "which node you mean: 'kubectl autoclave NODE receipt list', "),
    "a table of receipts": ((), ("receipt", "list", "-A", "-o", "table"), 2, "cannot print -o table: csv, json or "),
    "a GPU of all nodes": ((), ("receipt", "list", "-A", "0"), 2, "cannot use '0' for several nodes: after -A, -l "),
    "a receipt of all nodes": ((), ("receipt", "-A", "show", "0"), 2, "'receipt show 0' on several nodes: only"),
    "no such label": ((), ("status", "-l", "pool=x"), 2, "cannot find a node with the labels pool=x: see 'kubectl "),
    "no number": ((), ("status", "-A", "--within", "1m"), 2, "cannot read --within 1m: give a number of seconds"),
    "no such node": ((), ("gpu-9", "status"), 2, "cannot find node gpu-9: see 'kubectl get nodes'"),
    "no pod on the node": ((), ("cpu-1", "status"), 3, "of the scrubber on node cpu-1 in namespace autoclave: see "),
    "no pod in the namespace": (
        (), ("-n", "default", "gpu-1", "status"), 3, "find a DaemonSet of the scrubber in namespace default: see ",
    ),
    "no pod of the release": (
        (), ("--release=x", "gpu-1", "status"), 3, "cannot find a DaemonSet of the scrubber of release x: see ",
    ),
    "the container waits": (
        (replace(PLAIN, started="", phase="Pending", waiting="PodInitializing"),), ("gpu-1", "status"), 3,
        "pod autoclave/scrubber-a on node gpu-1: it is Pending, PodInitializing; see 'kubectl -n autoclave describe ",
    ),
    "the pod ends": (
        (replace(PLAIN, started="", deleted="x", ready="false"),), ("gpu-1", "status"), 3,
        "it is being deleted, Running; see ",
    ),
    "an unknown flag": ((), ("--watch", "gpu-1", "status"), 2, "cannot read --watch: see 'kubectl autoclave --help'; "),
    "a flag without its value": ((), ("--namespace",), 2, "cannot read --namespace: it needs a value"),
    "no verb": ((), ("gpu-1",), 2, "Usage: kubectl autoclave "),
    "nothing": ((), (), 2, "Usage: kubectl autoclave "),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "words", "code", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_is_named_and_no_command_runs(shell, pods, words, code, problem):
    shell.has(*(pods or CLUSTER))
    found, out, said = shell.run(*words)
    assert (found, out) == (code, "")
    assert problem in said
    assert not [asked for asked in shell.asked() if "exec" in asked]


@pytest.mark.parametrize(
    ("refused", "node", "problem"),
    [
        ("daemonsets", "gpu-1", "cannot ask the cluster for the DaemonSets of the scrubber"),
        ("pods", "gpu-1", "cannot ask the cluster for the pods of node gpu-1"),
        ("nodes", "gpu-9", "cannot find a pod of the scrubber on node gpu-9, and cannot ask whether the node exists"),
    ],
)
def test_no_answer_is_not_a_missing_node(shell, refused, node, problem):
    shell.has(*CLUSTER, refuses=refused)
    code, _, said = shell.run(node, "status")
    assert code == 3
    assert said.endswith(f"Error from server (Forbidden)\nkubectl autoclave: {problem}\n")


def test_a_missing_kubectl_is_named(shell, tmp_path):
    shell.environment["PATH"] = str(tmp_path)
    found = subprocess.run([shutil.which("sh") or "sh", SCRIPT, "gpu-1", "status"], env=shell.environment,
                           capture_output=True, text=True, check=False)  # fmt: skip
    assert (found.returncode, found.stderr) == (3, "kubectl autoclave: cannot find kubectl in PATH\n")


def test_help_needs_no_cluster(shell):
    shell.cluster.unlink()
    code, out, problem = shell.run("--help")
    assert (code, problem) == (0, "")
    assert out.startswith("Usage: kubectl autoclave ")


@pytest.mark.parametrize("piped", [True, False])
def test_only_a_terminal_gets_a_terminal(shell, piped):
    ours, theirs = pty.openpty()
    try:
        out = subprocess.PIPE if piped else theirs
        subprocess.run([SCRIPT, "gpu-1", "status"], env=shell.environment, stdin=theirs, stdout=out, check=True)
    finally:
        os.close(ours)
        os.close(theirs)
    assert shell.asked()[-1] == (["exec"] if piped else ["exec", "--stdin", "--tty"]) + [*EXEC[1:], "status"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_terminal_gets_no_control_characters_of_a_verb(shell, stream):
    """A file or a pipe gets every byte."""
    shell.has(*CLUSTER, code=1, says=HOSTILE)
    ours, theirs = pty.openpty()
    try:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: theirs}
        run = subprocess.run([SCRIPT, "gpu-1", "scrub", "0"], env=shell.environment, stdin=subprocess.DEVNULL,
                             check=False, **streams)  # fmt: skip
        shown = os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(theirs)
    assert run.returncode == 1
    assert shown.decode().replace("\r\n", "\n") == HARMLESS
    assert (run.stderr if stream == "stdout" else run.stdout).decode() == HOSTILE


def test_nodes_and_verbs_are_completed(shell):
    assert shell.run("gp", script=COMPLETION) == (0, "gpu-1\ngpu-2\n:4\n", "")
    code, out, _ = shell.run("gpu-1", "", script=COMPLETION)
    *verbs, end = out.splitlines()
    assert (code, end) == (0, ":4")
    assert "status" in verbs
    assert set(verbs) <= set(cli.cli.list_commands(click.Context(cli.cli)))
    assert shell.run("gpu-1", "status", "", script=COMPLETION) == (0, ":4\n", "")


@pytest.mark.parametrize("case", manifests.MATRIX)
def test_the_chart_makes_the_daemonset_that_is_looked_for(case):
    [line] = [line for line in SCRIPT.read_text().splitlines() if line.startswith("LABELS=")]
    labels = dict(label.split("=") for label in line.removeprefix("LABELS=").split(",")).items()
    [found] = [doc for doc in manifests.objects(case) if labels <= doc["metadata"].get("labels", {}).items()
               and doc["kind"] == "DaemonSet"]  # fmt: skip
    template = found["spec"]["template"]
    assert labels <= template["metadata"]["labels"].items()
    assert template["spec"]["hostPID"] is True
    assert template["spec"]["serviceAccountName"].endswith("-scrubber")
    assert "scrubber" in [one["name"] for one in template["spec"]["containers"]]


POD_RESOURCE = {"name": "pods", "namespaced": True, "kind": "Pod", "shortNames": ["po"], "verbs": ["get", "list"]}
SET_RESOURCE = {"name": "daemonsets", "namespaced": True, "kind": "DaemonSet", "verbs": ["get", "list"]}
APPS = {"groupVersion": "apps/v1", "version": "v1"}
SET: dict[str, object] = {
    "kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": {"namespace": "autoclave", "uid": PLAIN.uid()},
    "spec": {"template": {"spec": {"serviceAccountName": PLAIN.account}}},
}  # fmt: skip
DYING = Pod("dying", deleted="2026-11-22T03:00:00Z", ready="false", waiting="\x1b|x\nautoclave|b")
API: dict[str, dict[str, object]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1",
              "groups": [{"name": "apps", "versions": [APPS], "preferredVersion": APPS}]},
    "/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [SET_RESOURCE]},
    "/apis/apps/v1/daemonsets": {"kind": "DaemonSetList", "apiVersion": "apps/v1", "metadata": {}, "items": [SET]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [POD_RESOURCE]},
    "/api/v1/namespaces/autoclave/pods": {
        "kind": "PodList", "apiVersion": "v1", "metadata": {},
        "items": [PLAIN.document(), *(pod.document() for pod in (Pod("bare", phase="", host_pid=False), DYING))],
    },
    "/api/v1/namespaces/autoclave/pods/scrubber-a": PLAIN.document(),
}  # fmt: skip


class Answers(BaseHTTPRequestHandler):
    """An API server with one pod, which refuses every exec."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        found = API.get(urlsplit(self.path).path)
        body = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "code": 404}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_real_kubectl_runs_the_verb_in_that_pod(tmp_path):
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        run = subprocess.run([SCRIPT, "--server", address, "gpu-1", "explain", "0"], env=environment,
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # fmt: skip
        server.shutdown()
    assert run.returncode != 0
    (listed,) = (
        parse_qs(urlsplit(path).query)
        for path in Answers.asked
        if path.startswith("/api/v1/namespaces/autoclave/pods?")
    )
    assert listed["fieldSelector"] == ["spec.nodeName=gpu-1"]
    assert listed["labelSelector"] == ["app.kubernetes.io/name=autoclave,app.kubernetes.io/component=scrubber"]
    execs = {path for path in Answers.asked if "/exec?" in path}
    assert {urlsplit(path).path for path in execs} == {"/api/v1/namespaces/autoclave/pods/scrubber-a/exec"}
    for path in execs:
        query = parse_qs(urlsplit(path).query)
        assert (query["command"], query["container"]) == (["autoclave", "explain", "0"], ["scrubber"])
