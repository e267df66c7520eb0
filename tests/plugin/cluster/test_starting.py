"""Whether there are reports at all, and what is said where there are none."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ground.errors import FatalError
from plugin import config
from plugin.cluster import reporter
from plugin.cluster.report_choice import ReportChoice, Reports

NOWHERE = Path("/", "x" * 300)  # a name that no directory has: looking there fails


@pytest.fixture
def chosen(short_tmp, monkeypatch):
    """A plugin in a pod that has a service account, and no certificate beside its token."""
    (short_tmp / "token").write_text("secret")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    cluster = ReportChoice(node="node-1", service_account=short_tmp)
    return config.Config(kubelet_dir=short_tmp, run_dir=short_tmp, cluster=cluster)


def changed(chosen, **change):
    return replace(chosen, cluster=replace(chosen.cluster, **change))


ALONE = {"service_account": Path("/nonexistent")}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (ALONE, []),
        (ALONE | {"node": ""}, []),
        (ALONE | {"node": "Agent 1"}, []),  # what somebody else calls a node
        ({"node": ""}, ["the name of the node is unknown: set --node-name"]),
        ({"node": "Agent 1"}, ["--node-name 'Agent 1': not a valid name; give the node's name in the cluster"]),
        ({"service_account": NOWHERE}, ["cannot use the credentials: "]),
        ({"reports": Reports.OFF, "node": "Agent 1"}, []),
    ],
)
def test_impossible_reports_are_one_warning_and_the_plugin_runs(chosen, change, reason):
    chosen = changed(chosen, **change)
    with capture_logs() as logs:
        config.check(chosen)
        assert reporter.make_reporter(chosen.cluster) is None
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("nothing is reported to the cluster", "warning") for _ in reason
    ]
    assert all(line["why"].startswith(words) for line, words in zip(logs, reason, strict=True))


@pytest.mark.parametrize("change", [{"node": "Agent 1"}, {"node": ""}, ALONE])
def test_reports_on_without_credentials_does_not_start(chosen, change):
    insists = changed(chosen, reports=Reports.ON, **change)
    for begin in (config.check, lambda it: reporter.make_reporter(it.cluster)):
        with pytest.raises(FatalError, match="cannot report to the cluster: "):
            begin(insists)


def test_a_broken_client_library_ends_only_a_plugin_with_reports(chosen, short_tmp, monkeypatch):
    (short_tmp / "broken_client.py").write_text("raise ValueError('no such cipher')")
    monkeypatch.syspath_prepend(str(short_tmp))
    monkeypatch.setattr(reporter, "_CLIENT", "broken_client")
    with capture_logs() as logs:
        assert reporter.make_reporter(chosen.cluster) is None
    assert [line["why"].partition(":")[0] for line in logs] == ["the client library cannot be loaded (no such cipher)"]
    with pytest.raises(FatalError, match="the client library cannot be loaded"):
        reporter.make_reporter(changed(chosen, reports=Reports.ON).cluster)
    assert "broken_client" not in sys.modules
