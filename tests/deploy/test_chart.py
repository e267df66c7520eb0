"""The chart: every branch makes objects that the API knows, wrong values are told, and what it promises is there."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import helm_python
import msgspec
import pytest

import scrubber
from autoclave import cli
from autoclave.doctor.facts import chart_values
from dashboards import alert_summaries
from deploy import generate, image
from ground import public_names
from plugin.vendor import device_nodes
from tests.deploy import manifests
from tests.deploy.manifests import MATRIX

(VALUES,) = manifests.documents((generate.CHART / "values.yaml").read_text())
SCHEMA = json.loads((generate.CHART / "values.schema.json").read_text())
FLAGS = {
    name: {flag for parameter in verb.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    for name in ("scrubber", "plugin", "dra", "doctor", "cdi")
    if (verb := cli.cli.get_command(click.Context(cli.cli), name)) is not None
}
WIKI_PAGE = "https://wiki.example/gpus/${__data.fields.alertname}.md"
NAMES = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
CUSTOM = {  # what we write of the Prometheus operator's own objects, by the paths of their fields
    "PodMonitor": {"selector", "podMetricsEndpoints"},
    "ServiceMonitor": {"selector", "endpoints"},
    "PrometheusRule": {"groups"},
}
ENDPOINT = {"port", "interval", "filterRunning", "relabelings"}
RELABELING = {"sourceLabels", "targetLabel", "replacement"}
RULE = {"alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations"}


@pytest.mark.parametrize("case", MATRIX)
def test_every_object_is_one_that_the_api_knows(case):
    for doc in manifests.objects(case):
        if doc["kind"] in CUSTOM:
            assert doc["apiVersion"] == "monitoring.coreos.com/v1"
            assert doc["spec"].keys() == CUSTOM[doc["kind"]]
        else:
            assert manifests.check(doc) == []
        assert NAMES.fullmatch(doc["metadata"]["name"])
        assert len(doc["metadata"]["name"]) <= 63


def test_unknown_fields_of_the_api_are_found():
    doc = json.loads(json.dumps(manifests.of("default", "DaemonSet", "-plugin")))
    one = doc["spec"]["template"]["spec"]["containers"][0]
    one["livenesProbe"] = {}
    assert manifests.check(doc) == [".spec.template.spec.containers[0].livenesProbe"]
    del one["name"]
    with pytest.raises(msgspec.ValidationError, match="required field `name`"):
        manifests.check(doc)


@pytest.mark.parametrize("case", MATRIX)
def test_object_names_are_unique_and_selectors_match(case):
    docs = manifests.objects(case)
    assert len({generate.key(doc) for doc in docs}) == len(docs)
    labels = [doc["spec"]["template"]["metadata"]["labels"] for doc in docs if doc["kind"] == "DaemonSet"]
    labels += [doc["metadata"]["labels"] for doc in docs if doc["kind"] == "Pod"]
    for doc in docs:
        selector = doc["spec"].get("selector", doc["spec"].get("podSelector")) if "spec" in doc else None
        if selector is not None:
            wanted = selector.get("matchLabels", selector).items()
            assert sum(wanted <= found.items() for found in labels) == 1, generate.key(doc)


@pytest.mark.parametrize("case", MATRIX)
def test_mounts_and_volumes_match(case):
    for _, pod in manifests.pods(case):
        volumes = [volume["name"] for volume in pod["volumes"]]
        lists = [one["volumeMounts"] for one in (*pod.get("initContainers", ()), *pod["containers"])]
        assert sorted(volumes) == sorted({mount["name"] for mounts in lists for mount in mounts})
        for mounts in lists:
            assert len({mount["mountPath"] for mount in mounts}) == len(mounts)


@pytest.mark.parametrize("case", MATRIX)
def test_the_linter_of_helm_finds_no_fault(case):
    lint_output = helm_python.lint(generate.CHART, manifests.given(MATRIX[case]), strict=True, namespace="autoclave")
    assert lint_output["errors"] == []
    assert {it["error"] for it in lint_output["messages"]} <= {"icon is recommended"}


@pytest.mark.parametrize("case", MATRIX)
def test_helm_leaves_no_object_of_a_hook_behind(case):
    """It deletes none with the release. The log of a failed job stays for an hour, of a failed test until the next."""
    hooks = [doc for doc in manifests.objects(case) if "helm.sh/hook" in doc["metadata"].get("annotations", {})]
    for doc in hooks:
        deletes = doc["metadata"]["annotations"]["helm.sh/hook-delete-policy"].split(",")
        assert deletes == ["before-hook-creation", "hook-succeeded"]
        assert doc["kind"] != "Job" or doc["spec"]["ttlSecondsAfterFinished"] == 3600
    assert hooks


def test_selectors_do_not_change_with_what_things_are_called():
    """They cannot be changed in a cluster."""
    named = manifests.loaded({"fullnameOverride": "gpus"})
    sets = [[doc for doc in docs if doc["kind"] == "DaemonSet"] for docs in (named, manifests.objects("default"))]
    new, old = ([doc["spec"]["selector"] for doc in docs] for docs in sets)
    assert new == old
    assert {doc["metadata"]["name"] for doc in sets[0]} == {"gpus-scrubber", "gpus-plugin"}


@pytest.mark.parametrize("case", MATRIX)
def test_common_labels_and_annotations_are_on_all_objects(case):
    """The labels also on pods, but in no selector, which could not be changed in a cluster."""
    common = {"commonLabels": {"cost": "gpus", "team": "all"}, "commonAnnotations": {"owner": "gpus", "folder": "all"}}
    for doc in manifests.loaded(MATRIX[case] | common):
        assert doc["metadata"]["labels"]["cost"] == "gpus"
        annotations = doc["metadata"]["annotations"]
        assert (annotations["owner"], annotations["folder"] in {"all", "GPUs"}) == ("gpus", True)
        if doc["kind"] in {"DaemonSet", "Job"}:
            labels = doc["spec"]["template"]["metadata"]["labels"]
            assert labels["cost"] == "gpus"
            assert labels["team"] in ({"gpu"} if case == "more" else {"gpu", "all"}), "podLabels come first"
            assert "cost" not in json.dumps(doc["spec"].get("selector", {}))


@pytest.mark.parametrize("case", MATRIX)
def test_own_service_accounts_take_the_place_of_the_charts(case):
    accounts = {"scrubber": {"serviceAccount": "ours"}, "plugin": {"serviceAccount": "theirs"}}
    docs = manifests.loaded(MATRIX[case] | {side: MATRIX[case].get(side, {}) | own for side, own in accounts.items()})
    assert "ServiceAccount" not in {doc["kind"] for doc in docs}
    pods = [doc["spec"]["template"]["spec"] for doc in docs if doc["kind"] == "DaemonSet"]
    assert {pod["serviceAccountName"] for pod in pods} == {"ours", "theirs"}
    charts = {doc["metadata"]["name"] for doc in manifests.objects(case) if doc["kind"] == "ServiceAccount"}
    for doc in docs:
        for subject in doc.get("subjects", ()):
            assert subject["name"] == "theirs"
        for name in charts:
            assert f"serviceaccount:autoclave:{name}" not in json.dumps(doc)


def test_every_alert_is_given_the_labels_that_were_asked_for():
    values = {"prometheusRule": {"enabled": True, "alertLabels": {"team": "gpu"}}}
    (rules,) = (doc for doc in manifests.loaded(values) if doc["kind"] == "PrometheusRule")
    for rule in (rule for group in rules["spec"]["groups"] for rule in group["rules"]):
        labels = rule.get("labels", {})
        assert (labels.get("team") == "gpu", "severity" in labels) == ("alert" in rule,) * 2


def leaves(tree, schema, place=""):
    """Each value that the schema knows by its name, with its default or an AssertionError where they differ."""
    named = {name: inner for name, inner in schema["properties"].items() if name not in {"global", "sharing"}}
    known = {name: inner for name, inner in named.items() if "deprecated" not in inner}
    assert (schema.get("additionalProperties"), tree.keys()) == (False, known.keys()), place
    for name, inner in known.items():
        path = f"{place}.{name}" if place else name
        if "properties" in inner and not path.endswith("resources"):
            yield from leaves(tree[name], inner, path)
        else:
            yield path


def test_values_schema_and_table_match():
    known = set(leaves(VALUES, SCHEMA))
    assert known == {name for name, _, _ in generate.values()}


def test_exactly_the_generated_files_are_committed():
    made = generate.everything()
    stale = [path for path, content in made.items() if not path.exists() or path.read_bytes() != content]
    wrong = {*stale, *(path for path in generate.KUSTOMIZE.rglob("*.*") if path not in made)}
    assert sorted(str(path.relative_to(generate.ROOT)) for path in wrong) == [], "run `make deploy`"


def test_chart_and_program_have_one_version():
    chart = generate.chart().metadata
    assert (chart["version"], chart["appVersion"]) == (scrubber.__version__, scrubber.__version__)


@pytest.mark.parametrize("case", MATRIX)
def test_every_flag_is_one_that_the_program_has(case):
    for name, _, one in manifests.containers(case):
        if one["command"] == ["autoclave"] and name != "check-policies":  # it has files, and no flags
            assert manifests.flags(one).keys() <= FLAGS[one["args"][0]]


def test_values_of_the_policy_become_flags_of_the_scrubber():
    flags = manifests.flags(manifests.container("policy", "scrubber"))
    given = ("--operator-namespace", "site-gpus"), ("--fence", "refuse"), ("--exempt-unit", "a.service")
    assert set(given) <= flags.items()
    assert not {"--fence", "--exempt-unit"} & manifests.flags(manifests.container("default", "scrubber")).keys()


def test_a_trial_gets_a_cdi_specification_from_the_scrubber():
    """Nodes without GPUs have no other CDI specification that names any."""
    cases = {"default": "cdi-cri", "simulated": "cdi-cri", "two strategies": "cdi-cri,volume-mounts"}
    assert {case: manifests.flags(manifests.container(case, "plugin"))["--strategy"] for case in cases} == cases
    scrubber = manifests.container("simulated", "scrubber")
    volumes = {it["name"]: it.get("hostPath") for it in dict(manifests.pods("simulated"))["scrubber"]["volumes"]}
    mounts = {it["mountPath"]: volumes[it["name"]] for it in scrubber["volumeMounts"]}
    place = mounts[manifests.flags(scrubber)["--simulated-cdi-dir"]]
    assert place == {"path": "/var/run/cdi", "type": "DirectoryOrCreate"}
    assert "--simulated-cdi-dir" not in manifests.flags(manifests.container("default", "scrubber"))


@pytest.mark.parametrize("case", MATRIX)
def test_cdi_directories_are_mounted_for_cdi_strategies_only(case):
    """On the node they may be elsewhere; the doctor sees them where he looks."""
    side = "dra" if case in manifests.DRA else "plugin"
    values = MATRIX[case]
    in_front = any("inFrontOf" in values.get(part, {}) for part in ("dra", "plugin"))  # the program itself looks
    by_cdi = in_front or side == "dra" or "cdi-" in manifests.flags(manifests.container(case, "plugin"))["--strategy"]
    for called, pod, one in manifests.containers(case):
        places = {it["name"]: it["hostPath"]["path"] for it in pod["volumes"] if "hostPath" in it}
        seen = {
            it["mountPath"]: places.get(it["name"])
            for it in one["volumeMounts"]
            if it["name"] in {"cdi", "cdi-dynamic"}
        }
        looks = by_cdi and called == (side if in_front else f"doctor ({side})")
        static = MATRIX[case].get("directories", {}).get("cdi", "/etc/cdi")
        writes = called == "write-cdi (scrubber)"  # with the names of the node in its messages
        where = (static, "/var/run/cdi") if writes else ("/host/etc/cdi", "/host/run/cdi")
        assert seen == (dict(zip(where, (static, "/var/run/cdi"), strict=True)) if looks or writes else {})
        named = writes or ((looks or called == side) and case != "plugin in front")
        assert ("--cdi-kind" in manifests.flags(one)) == named
        if looks and not in_front:
            assert "--only=cdi" in one["args"]
            assert all(it["readOnly"] for it in one["volumeMounts"] if "cdi" in it["name"])


def test_the_plugin_in_front_sees_which_device_a_node_opens():
    mounts = {it["name"]: it["mountPath"] for it in manifests.container("plugin in front", "plugin")["volumeMounts"]}
    assert Path(mounts["host-dev"], "..").resolve() in device_nodes.HOSTS
    assert "host-dev" not in {it["name"] for it in manifests.container("default", "plugin")["volumeMounts"]}


def test_the_scrubbers_pod_writes_the_cdi_specification_first():
    """After a driver update this pod starts anew, as it held the old driver open."""
    for case, root, kind in (
        ("cdi", "/", "nvidia.com/gpu"), ("cdi of a driver container", "/run/nvidia/driver", "site.example/gpu"),
    ):  # fmt: skip
        pod = dict(manifests.pods(case))["scrubber"]
        first = pod["initContainers"][0]
        assert (first["name"], pod["runtimeClassName"]) == ("write-cdi", "nvidia")
        assert first["args"] == [
            "cdi", "--host-root=/host", f"--driver-root={root}", f"--cdi-kind={kind}", "--cdi-dir=/etc/cdi",
            "--cdi-dir=/var/run/cdi",
        ]  # fmt: skip
        monitors = {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"} in first["env"]
        assert monitors == (case != "cdi")
    assert "write-cdi" not in json.dumps(manifests.objects("default"))


def test_a_new_pod_waits_on_standby_beside_the_old_one():
    """R1: the kubelet throws out a plugin that registers before the stream of the old one has ended.

    While the image of a scrubber is pulled, the old scrubber serves.
    """
    for case, side, share in (("places", "plugin", "10%"), ("places", "scrubber", "10%"), ("default", "plugin", "5%")):
        strategy = manifests.of(case, "DaemonSet", side)["spec"]["updateStrategy"]
        assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": share}}
        for _, _, one in (it for it in manifests.containers("places") if it[0] == side):
            assert "--standby" in one["args"]


@pytest.mark.parametrize("case", ["default", "reports", "plugin in front", "mig", "more"])
def test_two_plugins_of_a_pod_differ_in_name_and_port(case):
    first, second = dict(manifests.pods(case))["plugin"]["containers"]
    assert (first["name"], second["name"]) == ("plugin", "plugin-2")
    text = json.dumps(second).replace("plugin-2", "plugin").replace("metrics-2", "metrics").replace("9477", "9476")
    assert json.loads(text) == first
    assert first["ports"] != second["ports"]


def test_a_value_switches_the_standby_off():
    docs = manifests.loaded({"plugin": {"standby": False}, "podMonitor": {"enabled": True}})
    assert [it["name"] for it in dict(manifests.pods(docs))["plugin"]["containers"]] == ["plugin"]
    assert "metrics-2" not in json.dumps(docs)


@pytest.mark.parametrize(("case", "kind"), [("pod monitor", "PodMonitor"), ("service monitor", "ServiceMonitor")])
def test_both_plugins_of_a_pod_are_scraped(case, kind):
    spec = manifests.of(case, kind, "plugin")["spec"]
    endpoints = spec.get("podMetricsEndpoints", spec.get("endpoints"))
    assert [it["port"] for it in endpoints] == ["metrics", "metrics-2"]
    allowed = manifests.of(case, "NetworkPolicy", "plugin")["spec"]["ingress"][0]["ports"]
    assert [it["port"] for it in allowed] == ["metrics", "metrics-2"]
    if kind == "ServiceMonitor":
        ports = manifests.of(case, "Service", "plugin")["spec"]["ports"]
        assert [(it["name"], it["port"]) for it in ports] == [("metrics", 9476), ("metrics-2", 9477)]


@pytest.mark.parametrize("case", MATRIX)
def test_only_pods_that_use_the_api_have_a_token(case):
    talks = "dra" if case in manifests.DRA else "plugin" if case in {"reports", "checkpoints", "any node"} else ""
    for called, pod, one in manifests.containers(case):
        assert pod["automountServiceAccountToken"] is False
        tokens = {volume["name"] for volume in pod["volumes"] if "projected" in volume or "secret" in volume}
        mounted = {it["name"] for it in one["volumeMounts"]} & tokens
        assert bool(mounted) == (called == talks)
    assert bool([doc for doc in manifests.objects(case) if "Role" in doc["kind"]]) == bool(talks)


def rights(case):
    """Where, what, and which verb."""
    roles = [doc for doc in manifests.objects(case) if doc["kind"] in {"Role", "ClusterRole"}]
    return {
        (doc["metadata"].get("namespace"), what, verb)
        for doc in roles
        for rule in doc["rules"]
        for what in rule["resources"]
        for verb in rule["verbs"]
    }


def test_reports_need_three_rights():
    events = {("default", "events", "create")}
    assert rights("reports") == {(None, "nodes", "get"), (None, "nodes/status", "patch"), *events}
    assert manifests.flags(manifests.container("reports", "plugin"))["--cluster-reports"] == "on"
    assert {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in manifests.container(
        "reports", "plugin"
    )["env"]


@pytest.mark.parametrize(
    ("case", "side", "action"), [("nvsentinel", "plugin", "none"), ("nvsentinel for claims", "dra", "remediate")]
)
def test_reports_to_nvsentinel_need_a_mount_and_no_token(case, side, action):
    """The connector takes callers without a token for its own node, and a read-only mount lets them connect."""
    one, pod = manifests.container(case, side), dict(manifests.pods(case))[side]
    flags = manifests.flags(one)
    socket = "/var/run/nvsentinel/nvsentinel.sock"
    assert (flags["--nvsentinel-socket"], flags["--nvsentinel-action"]) == (socket, action)
    assert "NODE_NAME" in {it["name"] for it in one["env"]}
    [mount] = [it for it in one["volumeMounts"] if it["name"] == "nvsentinel"]
    [volume] = [it["hostPath"] for it in pod["volumes"] if it["name"] == "nvsentinel"]
    assert (mount["mountPath"], mount["readOnly"]) == (volume["path"], True) == ("/var/run/nvsentinel", True)
    assert ("token" in {it["name"] for it in pod["volumes"]}) is (side == "dra")


@pytest.mark.parametrize("case", ["default", "reports"])
def test_only_metrics_go_through_the_network(case):
    for side in ("scrubber", "plugin"):
        spec = manifests.of(case, "NetworkPolicy", side)["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        [rule] = spec["ingress"]
        assert {it["port"].removesuffix("-2") for it in rule["ports"]} == {"metrics"}
        ports = [port["port"] for rule in spec["egress"] for port in rule["ports"]]
        assert ports == ([443, 6443] if (case, side) == ("reports", "plugin") else [])


def test_the_pod_of_helm_test_uses_no_network():
    policy = manifests.of("default", "NetworkPolicy", "-test")
    assert (policy["spec"]["ingress"], policy["spec"]["egress"]) == ([], [])
    hooks = policy["metadata"]["annotations"]
    assert (hooks["helm.sh/hook"], int(hooks["helm.sh/hook-weight"]) < 0) == ("test", True)
    assert not [doc for doc in manifests.objects("bare") if doc["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("case", ["default", "cdi", "dra"])
def test_every_container_has_limits(case):
    """A limit of CPU or memory would end or slow down a scrub."""
    for called, _, one in manifests.containers(case):
        wanted = {"ephemeral-storage"} if called == "scrubber" else {"cpu", "memory", "ephemeral-storage"}
        assert one["resources"]["limits"].keys() == wanted
        assert one["resources"]["requests"].keys() == {"cpu", "memory", "ephemeral-storage"}


def test_metrics_and_probes_listen_on_the_pods_address():
    """Of whichever family: the program knows one of version 6 without brackets, too."""
    for side, port in (("scrubber", 9475), ("plugin", 9476)):
        one = manifests.container("default", side)
        assert manifests.flags(one)["--metrics-address"] == f"$(POD_IP):{port}"
        assert one["ports"] == [{"name": "metrics", "containerPort": port, "protocol": "TCP"}]
        probes = [one[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
        assert [it["path"] for it in probes] == ["/healthz", "/healthz", "/readyz"]
        assert {it["port"] for it in probes} == {"metrics"}


@pytest.mark.parametrize(("case", "kind", "where"), [
    ("pod monitor", "PodMonitor", "podMetricsEndpoints"), ("service monitor", "ServiceMonitor", "endpoints"),
])  # fmt: skip
def test_jobs_and_nodes_have_the_labels_of_the_alerts(case, kind, where):
    alerts = (generate.ROOT / "dashboards/alerts.yaml").read_text()
    for side in ("scrubber", "plugin"):
        for endpoint in manifests.of(case, kind, side)["spec"][where]:
            assert endpoint.keys() <= ENDPOINT
            assert all(it.keys() <= RELABELING for it in endpoint["relabelings"])
            given = {it["targetLabel"]: it for it in endpoint["relabelings"]}
            assert given["node"]["sourceLabels"] == ["__meta_kubernetes_pod_node_name"]
            assert given["job"]["replacement"] == f"autoclave-{side}"
    assert 'job="autoclave-scrubber"' in alerts
    assert 'job=~"autoclave-(scrubber|plugin|dra)"' in alerts


FAULTY = "name: mine\ndefaults: {mode: enforced}\n"


@pytest.mark.parametrize(("text", "code"), [("name: mine\n", 0), (FAULTY, 2)], ids=["good", "with a fault"])
def test_an_inline_policy_with_faults_stops_helm_first(text, code, tmp_path):
    """The job runs before anything is rolled out. Here its command checks the files of its volume."""
    values = {"policy": {"inline": "name: all\n", "nodeLabel": "pool", "byNodeLabel": {"bank": {"inline": text}}}}
    docs = [it for it in manifests.loaded(values) if it["metadata"]["name"] == "autoclave-check-policies"]
    about = [(it["kind"], int(it["metadata"]["annotations"].get("helm.sh/hook-weight", 0))) for it in docs]
    assert about == [("ConfigMap", -1), ("Job", 0)]
    for doc in docs:
        assert doc["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert manifests.check(doc) == []
    pod = docs[1]["spec"]["template"]["spec"]
    [one], [volume] = pod["containers"], pod["volumes"]
    assert (volume["configMap"]["name"], one["command"]) == ("autoclave-check-policies", ["autoclave"])
    for name, content in docs[0]["data"].items():
        (tmp_path / name).write_text(content)
    args = [word.replace(one["volumeMounts"][0]["mountPath"], str(tmp_path)) for word in one["args"]]
    assert args == ["policy", "check", f"{tmp_path}/policy-bank.yaml", f"{tmp_path}/policy.yaml"]
    checked = subprocess.run([sys.executable, "-m", "autoclave", *args], capture_output=True, text=True, check=False)
    assert (checked.returncode, "policy-bank.yaml:2" in checked.stderr) == (code, code != 0)
    assert "preferred" in next(iter(pod["affinity"]["nodeAffinity"])), "there may be no node with a GPU yet"


def test_a_policy_that_is_not_inline_needs_no_job_before():
    for case in ("default", "observe", "policy of others"):
        assert not [it for it in manifests.objects(case) if it["kind"] == "Job"]


@pytest.mark.parametrize("own", [{"shipped": "fast"}, {"inline": "name: mine\n"}, {"existingConfigMap": "theirs"}])
def test_a_label_of_nodes_chooses_their_policy(own):
    pools = {"strict": {"shipped": "strict"}, "bank": {"inline": "name: bank\n"}}
    found = manifests.loaded({"policy": {**own, "nodeLabel": "pool", "byNodeLabel": pools}})
    policies: dict[str, object] = {}
    for doc in found:
        if doc["kind"] != "DaemonSet" or "scrubber" not in doc["metadata"]["name"]:
            continue
        pod = doc["spec"]["template"]["spec"]
        [policy] = [it for it in pod["containers"][0]["args"] if it.startswith("--policy=")]
        terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        without = {json.dumps(term["matchExpressions"][1:]) for term in terms}
        policies[doc["metadata"]["name"]] = (policy, pod.get("nodeSelector"), *without)
        assert public_names.DOMAIN not in json.dumps(doc["spec"]["selector"]), "a selector can never be changed"
    in_file, nowhere = (
        "--policy=/etc/autoclave/policy/policy.yaml",
        json.dumps([{"key": "pool", "operator": "DoesNotExist"}]),
    )
    assert policies == {
        "autoclave-scrubber": ("--policy=fast" if "shipped" in own else in_file, None, nowhere),
        "autoclave-scrubber-bank": (in_file, {"pool": "bank"}, "[]"),
        "autoclave-scrubber-strict": ("--policy=strict", {"pool": "strict"}, "[]"),
    }
    maps = (doc for doc in found if doc["kind"] == "ConfigMap" and "annotations" not in doc["metadata"])
    texts = {doc["metadata"]["name"]: doc["data"] for doc in maps}
    mine = {"autoclave-policy": {"policy.yaml": own["inline"]}} if "inline" in own else {}
    assert texts == {"autoclave-policy-bank": {"policy.yaml": "name: bank\n"}} | mine


@pytest.mark.parametrize(("side", "verbs"), [("scrubber", ("scrubber",)), ("plugin", ("plugin", "dra"))])
def test_more_flags_are_real_flags(side, verbs):
    pattern = SCHEMA["properties"][side]["properties"]["extraArgs"]["items"]["pattern"]
    commands = [cli.cli.get_command(click.Context(cli.cli), verb) for verb in verbs]
    flags = {flag for it in commands if it for param in it.params for flag in param.opts if flag.startswith("--")}
    assert sorted(flag for flag in flags if re.fullmatch(pattern, flag)) == sorted(flags - {"--help"})


def test_all_rules_are_shipped_but_those_that_were_left_out():
    files = [(generate.CHART / "files" / name).read_text() for name in ("rules.yaml", "alerts.yaml")]
    shipped = [group for text in files for document in manifests.documents(text) for group in document["groups"]]
    made = manifests.of("rules", "PrometheusRule")["spec"]["groups"]
    rules = [[rule for rule in group["rules"] if rule.get("alert") != "AutoclaveAbsent"] for group in made]
    assert rules == [group["rules"] for group in made]
    wanted = [
        {**group, "rules": [rule for rule in group["rules"] if rule.get("alert") != "AutoclaveAbsent"]}
        for group in shipped
    ]
    for rule in (rule for group in wanted for rule in group["rules"] if "alert" in rule):
        rule["annotations"]["runbook_url"] = f"https://wiki.example/gpus/{rule['alert']}.md"
    assert made == [group for group in wanted if group["rules"]]
    assert all(rule.keys() <= RULE for group in made for rule in group["rules"])


def test_a_dashboard_is_installed_byte_for_byte():
    found = [doc for doc in manifests.objects("dashboards") if doc["kind"] == "ConfigMap"]
    pages = {name: text for doc in found for name, text in doc["data"].items()}
    ours = {path.name: path.read_text() for path in Path(generate.ROOT, "dashboards/grafana").glob("*.json")}
    assert {name: text.replace(WIKI_PAGE, alert_summaries.NO_PAGE) for name, text in pages.items()} == ours
    assert all(doc["metadata"]["labels"]["grafana_dashboard"] == "1" for doc in found)


def test_a_policy_directory_is_mounted_so_that_changes_arrive():
    for case, name, file in (
        ("policy", "autoclave-policy", "policy.yaml"),
        ("policy of others", "theirs", "site.yaml"),
    ):
        one = manifests.container(case, "scrubber")
        assert manifests.flags(one)["--policy"] == f"/etc/autoclave/policy/{file}"
        (mount,) = (it for it in one["volumeMounts"] if it["name"] == "policy")
        assert (mount["mountPath"], "subPath" in mount) == ("/etc/autoclave/policy", False)
        (volume,) = (it for it in manifests.of(case, "DaemonSet", "scrubber")["spec"]["template"]["spec"]["volumes"]
                     if it["name"] == "policy")  # fmt: skip
        assert volume["configMap"] == {"name": name}
    assert manifests.of("policy", "ConfigMap", "-policy")["data"] == {"policy.yaml": manifests.POLICY}


def test_another_device_plugin_prevents_the_start_of_ours():
    """The doctor comes first; with it switched off it is not there."""
    for side, checks in (("scrubber", ["kubelet-dir", "pid-namespace", "vgpu-host"]),
                         ("plugin", ["kubelet-dir", "plugin-dir", "rival-plugin", "cdi"])):  # fmt: skip
        one = manifests.container("default", f"doctor ({side})")
        assert [word for word in one["args"] if "--only" in word] == [f"--only={name}" for name in checks]
        assert manifests.flags(one)["--wait"] == "10m"
    assert all("initContainers" not in pod for _, pod in manifests.pods("bare"))


def test_a_digest_takes_precedence_in_every_image():
    for case, build in (("default", "-cuda12"), ("simulated", "")):
        ours = f"{image.REPOSITORY}:{scrubber.__version__}{build}"
        assert {one["image"] for _, _, one in manifests.containers(case)} == {ours}
    assert {one["image"] for _, _, one in manifests.containers("places")} == {f"{image.REPOSITORY}@sha256:" + "0" * 64}


FORMER: dict[str, Any] = {
    "scrubber": {"metricsPort": 9000, "terminationGracePeriodSeconds": 5},
    "plugin": {"metricsPort": 9001, "terminationGracePeriodSeconds": 5},
    "dra": {"terminationGracePeriodSeconds": 5},
}


def test_values_of_older_versions_change_nothing_and_are_named():
    notes = manifests.notes(FORMER, upgrade=True)
    given = {f"{group}.{name}" for group, values in FORMER.items() for name in values}
    assert set(re.findall(r"^  ([\w.]+): ", notes, re.MULTILINE)) == given == {*chart_values.former_values()}
    assert "change nothing any more" not in manifests.notes({})
    assert manifests.loaded({**FORMER, "nameOverride": ""}) == manifests.loaded({})


@pytest.mark.parametrize(("old", "name"), [("gpus", "autoclave-gpus"), ("clave", "autoclave")])
def test_name_override_is_refused_with_the_name_of_before(old, name):
    """Without it, each object would be created again beside the old one."""
    with pytest.raises(helm_python.HelmError, match=f"set fullnameOverride={name} in its place"):
        manifests.loaded({"nameOverride": old})


@pytest.mark.parametrize(
    ("policy", "refuses"),
    [
        ({"shipped": "strict"}, True),
        ({"fence": "refuse"}, True),
        ({"nodeLabel": "pool", "byNodeLabel": {"strict": {"shipped": "strict"}}}, True),
        ({"shipped": "strict", "fence": "watch"}, False),
        ({"shipped": "strict", "fence": "hold"}, False),
        ({}, False),
    ],
)
def test_notes_say_whom_strict_refuses_and_who_is_exempt_first(policy, refuses):
    notes = manifests.notes({"policy": policy})
    assert ("nor can programs of the host" in notes, "begin with policy.fence=watch" in notes) == (refuses, refuses)


def test_notes_name_the_daemonsets_and_the_pod_of_a_node():
    notes = manifests.notes({})
    labels = "app.kubernetes.io/instance=x,app.kubernetes.io/component=scrubber"
    on_node = "--field-selector spec.nodeName=NODE,status.phase=Running -o name | tail -1)"
    assert f"kubectl -n gpus get pods -l {labels} {on_node}\n" in notes
    assert "kubectl autoclave -n gpus NODE status" in notes
    for side in ("scrubber", "plugin"):
        assert f"kubectl -n gpus rollout status daemonset/x-autoclave-{side}\n" in notes


@pytest.mark.parametrize(
    ("case", "side", "step"),
    [
        ("plugin in front", "plugin", "KUBELET_SOCKET=/var/lib/kubelet/device-plugins/vendor/kubelet.sock"),
        ("dra in front", "dra", "kubeletRegistrarDirectoryPath=/var/lib/kubelet/plugins_gated"),
        ("gpu cluster", "dra", "kubectl patch gpucluster gpu-cluster"),
    ],
)
def test_notes_wait_for_pods_behind_another_plugin_last(case, side, step):
    """These pods are ready only when the other plugin has registered."""
    before, found, after = manifests.notes(MATRIX[case]).partition(step)
    wait = f"rollout status daemonset/x-autoclave-{side}\n"
    assert (found, wait in before, wait in after) == (step, False, True)


@pytest.mark.parametrize("case", ["plugin in front", "dra in front"])
@pytest.mark.parametrize(
    "policy",
    [{"shipped": "default"}, {"inline": manifests.POLICY}, {"existingConfigMap": "theirs"},
     {"shipped": "observe", "nodeLabel": "pool", "byNodeLabel": {"a": {"shipped": "fast"}}}],
    ids=lambda policy: next(reversed(policy)),
)  # fmt: skip
def test_a_first_install_in_front_must_have_the_policy_observe(case, policy):
    """Before it has moved, the other one still hands GPUs out, and a scrub does not know to whom."""
    with pytest.raises(helm_python.HelmError, match=r"install with policy\.shipped=observe.*policy\.afterObserve"):
        manifests.notes(MATRIX[case] | {"policy": policy})
    caution, until = "CAUTION: on a node where the other one does not register there, nothing is proven", "Until"
    later = manifests.notes(MATRIX[case] | {"policy": policy}, upgrade=True)
    assert (caution in later, until in later) == (True, False), "by then it has registered, as the fifth command checks"
    assert caution in manifests.notes(MATRIX[case] | {"policy": policy | {"afterObserve": True}})
    notes = manifests.notes(MATRIX[case])
    assert "helm upgrade x CHART --namespace gpus --reset-then-reuse-values --set policy.shipped=default\n" in notes
    assert (caution in notes, until in notes) == (False, True)


def test_notes_promise_a_proof_only_if_the_policy_does():
    promise = "A GPU is handed out only after it is proven clean."
    for policy, said in (
        ({}, promise),
        ({"shipped": "observe"}, "it only records and reports"),
        ({"inline": manifests.POLICY}, "Your own policy says what must be proven"),
        ({"existingConfigMap": "theirs"}, "Your own policy says what must be proven"),
    ):
        notes = manifests.notes({"policy": policy})
        assert said in notes
        assert (promise in notes) == (said == promise)


@pytest.mark.parametrize("case", MATRIX)
def test_a_verb_in_the_pod_needs_no_flags_for_directories(case):
    one = manifests.container(case, "scrubber")
    flags, variables = manifests.flags(one), {it["name"]: it.get("value") for it in one["env"]}
    for flag in ("--run-dir", "--state-dir", "--kubelet-dir", "--host-root"):
        assert variables["AUTOCLAVE_" + flag.strip("-").replace("-", "_").upper()] == flags[flag]


@pytest.mark.parametrize("url", ["https://wiki.example/gpus", "https://wiki.example/gpus/"])
def test_links_to_runbooks_follow_the_value(url):
    values = {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}
    without = json.dumps(manifests.loaded(values))
    assert "runbook_url" not in without
    linked = manifests.loaded(values | {"runbookUrl": url})
    (rules,) = (doc for doc in linked if doc["kind"] == "PrometheusRule")
    alerts = [rule for group in rules["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["annotations"].pop("runbook_url") == f"https://wiki.example/gpus/{alert['alert']}.md"
    assert json.dumps(linked).replace(WIKI_PAGE, alert_summaries.NO_PAGE) == without


def test_commands_of_alerts_name_the_namespace_of_the_release():
    values = manifests.given({"prometheusRule": {"enabled": True}})
    rules = generate.chart().render(values, name="x", namespace="gpus")["autoclave/templates/monitoring.yaml"]
    assert "kubectl -n gpus exec $(kubectl -n gpus get pods -l " in rules
    assert "kubectl -n autoclave " not in rules


@pytest.mark.parametrize(
    "page",
    [f"docs/{name}.md" for name in ("install", "kustomize", "switch", "security", "kubernetes", "dra")],
)
def test_every_value_named_on_a_page_exists(page):
    known = {name for name, _, _ in generate.values()}
    words = re.findall(r"(?:`|--set(?:-file)? )([a-zA-Z]+[.][a-zA-Z.]+)", (generate.ROOT / page).read_text())
    named = {word for word in words if word.split(".")[0] in VALUES and not word.endswith(".sock")}
    assert named
    assert {name for name in named if not any(f"{each}.".startswith(f"{name}.") for each in known)} == set()
