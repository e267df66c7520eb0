"""Each alert has the facts that an operator on call needs, has a runbook, and is shown to fire and to stay quiet."""

import json
import re

import promql_parser as promql
import pytest

from dashboards import reference
from deploy import manual
from policies.hardware import DeviceSign, QuarantinePolicy
from scrubber.core.ailment_traits import AILMENTS, Course
from scrubber.core.model import AilmentKind
from tests.dashboards import rulefiles
from tests.dashboards.rulefiles import ALERTS, ROOT, RUNBOOKS, UNIT_TESTS

NAMES = [rule["alert"] for rule in ALERTS]
PAGES = {path.stem: path.read_text() for path in sorted(RUNBOOKS.glob("*.md")) if path.stem != "README"}
HEADINGS = [
    "What it means",
    "What Autoclave has already done",
    "What to do",
    "How you know it is over",
]
SEVERITIES = {"critical", "warning"}
VARIABLES = {  # of each page
    page["uid"]: {variable["name"] for variable in page["templating"]["list"]}
    for page in (json.loads(path.read_text()) for path in (ROOT / "dashboards" / "grafana").glob("*.json"))
}
LABEL = re.compile(r"\$labels\.(\w+)")
SCRUBBER = "app.kubernetes.io/name=autoclave,app.kubernetes.io/component=scrubber"
COMMAND = re.compile(r"`autoclave ([^`]*)`")
FIELDS = re.compile(r"^\| `([a-z_.]+)` \|", re.MULTILINE)

each_alert = pytest.mark.parametrize("alert", ALERTS, ids=NAMES)


def test_each_alert_has_its_page_and_each_page_its_alert():
    assert sorted(PAGES) == sorted(NAMES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_answers_the_same_four_questions(name):
    title, *sections = re.split(r"^## ", PAGES[name], flags=re.MULTILINE)
    assert title == f"# {name}\n\n"
    assert [section.splitlines()[0] for section in sections] == HEADINGS
    assert [section for section in sections if len(section.split("\n", 1)[1].split()) < 3] == []


@each_alert
def test_an_alert_has_severity_wait_and_links(alert):
    notes = alert["annotations"]
    assert set(alert) - {"keep_firing_for"} == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Autoclave[A-Z]\w+", alert["alert"])
    assert alert["labels"].keys() == {"severity"}
    assert alert["labels"]["severity"] in SEVERITIES
    assert notes.keys() == {"summary", "description", "kubectl", "dashboard_url"}
    uid, _, asked = notes["dashboard_url"].removeprefix("/d/").partition("?")
    assert set(re.findall(r"var-(\w+)=", asked)) <= VARIABLES[uid]
    assert len(COMMAND.findall(notes["description"])) == 1, "one command to run"
    counted = re.search(r"{{ \$value( \| humanize)? }}", notes["description"])
    assert counted is None or alert["expr"].startswith("count"), "46.08 refusals"


@each_alert
def test_an_alert_has_its_command_also_for_kubectl(alert):
    notes = alert["annotations"]
    node = "{{ $labels.node }}" if "node" in rulefiles.given(promql.parse(alert["expr"])) else "NODE"
    (command,) = COMMAND.findall(notes["description"])
    assert f"`kubectl autoclave {node} {command}`" in notes["description"]
    if alert["alert"] == "AutoclaveScrubberUnheard":  # the pod of the scrub service may have ended
        return
    assert notes["kubectl"] == (
        f"kubectl -n autoclave exec $(kubectl -n autoclave get pods -l {SCRUBBER} "
        f"--field-selector spec.nodeName={node},status.phase=Running -o name | tail -1) "
        f"-c scrubber -- autoclave {command}"
    )


def test_a_scrubber_that_does_not_run_is_asked_elsewhere():
    """Where it crashes again and again, or has no pod, nothing can be run in its container."""
    [notes] = [alert["annotations"] for alert in ALERTS if alert["alert"] == "AutoclaveScrubberUnheard"]
    on_node = "--field-selector spec.nodeName={{ $labels.node }}"
    log, _, doctor = notes["kubectl"].partition("; ")
    assert log == (
        f"kubectl -n autoclave logs $(kubectl -n autoclave get pods -l {SCRUBBER} {on_node} -o name | tail -1) "
        "-c scrubber --previous"
    )
    assert doctor == (
        "kubectl -n autoclave exec $(kubectl -n autoclave get pods -l "
        f"'app.kubernetes.io/name=autoclave,app.kubernetes.io/component in (plugin,dra)' {on_node},"
        "status.phase=Running -o name | tail -1) -- autoclave doctor --run-dir /run/autoclave/doors --only service"
    )


def test_an_opened_gpu_is_asked_whether_a_tenant_had_it():
    [notes] = [alert["annotations"] for alert in ALERTS if alert["alert"] == "AutoclaveGpuOpened"]
    assert COMMAND.findall(notes["description"]) == ["history {{ $labels.gpu }} --warnings"]
    assert '"while somebody else had it"' in notes["description"]


@pytest.mark.parametrize("name", PAGES)
def test_a_runbook_leads_to_the_commands_for_kubernetes(name):
    assert "](README.md#how-to-run-the-commands)" in PAGES[name].partition("## What to do")[2]


@pytest.mark.parametrize("command", ["autoclave", "nvidia-smi", "journalctl"])
def test_the_commands_are_there_for_hosts_and_kubernetes(command):
    rows = re.findall(r"^\| `(.+?)` \| `(.+)` \|$", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)
    assert [on_kubernetes for on_node, on_kubernetes in rows if on_node.split()[0] == command]
    assert all(on_kubernetes.startswith("kubectl ") for _, on_kubernetes in rows)


@each_alert
def test_an_alert_about_a_condition_survives_a_restart(alert):
    """Alerts over a window survive a restart anyway, and metrics of Prometheus itself do not depend on ours."""
    from_autoclave = "autoclave_" in alert["expr"]
    windowed = re.search(r"increase|rate|max_over_time\(autoclave_device_blocked\[5m\]", alert["expr"]) is not None
    assert alert.get("keep_firing_for") == ("5m" if from_autoclave and not windowed else None)


@each_alert
def test_an_alert_names_its_gpu_and_node(alert):
    has = rulefiles.given(promql.parse(alert["expr"]))
    notes = alert["annotations"]
    named = set(LABEL.findall(notes["summary"]))
    assert has & {"gpu", "node", "reason", "resource", "sign", "xid"} <= named
    if "uuid" in has:
        assert "$labels.uuid" in notes["description"]
    assert set(LABEL.findall(" ".join(notes.values()))) <= has


def tried(files):
    """The label sets with which each alert fires in the unit tests; an empty set is a time of quiet."""
    seen: dict[str, list[frozenset[str]]] = {}
    for file in files:
        for test in file["tests"]:
            for check in test.get("promql_expr_test", ()):
                name = re.fullmatch(r'ALERTS\{alertname="(\w+)", alertstate="firing"\}', check["expr"])
                if name:
                    fired = [frozenset(re.findall(r'(\w+)="', it["labels"])) for it in check["exp_samples"]]
                    seen.setdefault(name[1], []).extend(fired or [frozenset()])
    return seen


SEEN = tried(UNIT_TESTS.values())


@each_alert
def test_unit_tests_show_each_alert_firing_and_quiet(alert):
    seen = SEEN.get(alert["alert"], [])
    assert any(seen), "no unit test lets it fire"
    assert frozenset() in seen, "no unit test says when it does not fire"


@each_alert
def test_the_labels_that_an_alert_names_exist_when_it_fires(alert):
    names = set(LABEL.findall(" ".join(alert["annotations"].values()))) - {"cluster"}
    assert [labels for labels in SEEN[alert["alert"]] if labels and not names <= labels] == []


def test_commands_in_pages_and_alerts_exist():
    flags = {
        verb.command_path: {flag for option in verb.command.get_params(verb) for flag in option.opts}
        for verb in manual.commands()
    }
    texts = [*PAGES.items(), *((rule["alert"], rule["annotations"]["description"]) for rule in ALERTS)]
    problems = []
    for name, text in texts:
        for command in COMMAND.findall(text):
            words = re.sub(r"\{\{.*?\}\}", "X", command).split()
            verb = " ".join(words[:2] if words[0] in {"ledger", "policy", "receipt"} else words[:1])
            given = {word for word in words if word.startswith("-")}
            problems += [] if given <= flags.get(f"autoclave {verb}", set()) else [(name, command)]
            problems += [] if f"autoclave {verb}" in flags else [(name, command)]
    assert problems == []


def test_policy_fields_and_findings_in_pages_exist():
    fields = set(FIELDS.findall((ROOT / "docs" / "policy-fields.md").read_text()))
    fields |= {field.rpartition(".")[0] for field in fields}
    named = {
        (name, field)
        for name, page in PAGES.items()
        for field in re.findall(r"`([a-z]+\.[a-z_]+)(?:: [^`]*)?`", page)
        if not field.startswith(("ledger.db", "kubelet."))
    }
    assert [it for it in named if it[1] not in fields] == []
    text = "\n".join(PAGES.values())
    findings = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs" / "doctor.md").read_text(), re.MULTILINE))
    lists = re.findall(r"`autoclave doctor` and read ((?:`[a-z-]+`(?:, | and )?)+)", " ".join(text.split()))
    pointed = {finding for listed in lists for finding in re.findall(r"`([a-z-]+)`", listed)}
    assert pointed
    assert pointed <= findings


def reasons(page):
    """The ailments that a page names."""
    return set(re.findall(r"`([a-z-]+)`", page)) & {kind.value for kind in AilmentKind}


def to_do(name):
    return PAGES[name].partition("## What to do\n")[2].partition("\n## ")[0]


def test_the_page_of_a_long_quarantine_advises_on_each_reason():
    """On each for which its alert fires: where a person decides, there is no next probation."""
    [alert] = [alert["expr"] for alert in ALERTS if alert["alert"] == "AutoclaveGpuNotRecovering"]
    [others] = re.findall(r'reason!~"([a-z|-]+)"', alert)
    tested = {kind.value for kind, traits in AILMENTS.items() if traits.course is not Course.PERSON}
    assert reasons(to_do("AutoclaveGpuNotRecovering")) == tested - set(others.split("|"))


def test_the_page_of_an_impaired_gpu_advises_on_each_sign():
    """On each that does not quarantine by default."""
    left = {sign.value for sign in DeviceSign} - {sign.value for sign in QuarantinePolicy().signs}
    assert reasons(to_do("AutoclaveGpuImpaired")) == left


def test_the_pages_name_each_ailment_without_a_doubt():
    harmless = {kind.value for kind, traits in AILMENTS.items() if not traits.doubtful}
    policies = (ROOT / "docs" / "policies.md").read_text()
    sentence = policies.partition("That is every fault except")[2].partition(".")[0]
    means = PAGES["AutoclaveGpuSickInUse"].partition("## What it means\n")[2].partition("\n## ")[0]
    assert reasons(means) == reasons(sentence) == harmless


def course(tried):
    """What may end a quarantine, by what the page says is tried."""
    if "an operator decides" in tried:
        return Course.PERSON
    return Course.RESET if re.search(r"(^|then )the path `reset`", tried) else Course.WAIT


def test_the_page_of_quarantine_says_what_ends_each():
    page = (ROOT / "docs" / "quarantine.md").read_text()
    [table] = re.findall(r"^\| reason \| what is tried \|\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = [line.strip("| \n").split(" | ") for line in table.splitlines()]
    said = {name: course(tried) for names, tried in rows for name in re.findall(r"`([a-z-]+)`", names)}
    assert said == {kind.value: traits.course for kind, traits in AILMENTS.items()}


def test_log_events_in_pages_exist():
    known = re.findall(r"^\* `([^`]+)`", (ROOT / "docs" / "logs.md").read_text(), re.MULTILINE)
    text = " ".join("\n".join(PAGES.values()).split())
    quoted = set(re.findall(r"`(cannot [^`]+|internal error[^`]*|not registered)`", text))
    assert {"cannot reconcile the devices", "not registered"} <= quoted
    assert [it for it in quoted if not any(event.startswith(it) for event in known)] == []


def test_links_between_pages_lead_somewhere():
    found = {(name, link) for name, page in PAGES.items() for link in re.findall(r"\]\(([^)]+)\)", page)}
    assert [it for it in found if not (RUNBOOKS / it[1].partition("#")[0]).exists()] == []


def test_the_table_of_thresholds_lists_each_alert():
    page = (ROOT / "docs" / "alerts.md").read_text()
    assert page.count("| [Autoclave") == len(ALERTS)
    assert reference.with_alerts(page) == page, "write it anew: make docs"
