"""Who would speak to whom."""

from dataclasses import replace
from pathlib import Path

import pytest

from plugin.cluster import credentials
from plugin.cluster.report_choice import ReportChoice, Reports
from scrub_api.request_limits import is_subdomain

SERVICE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
NAMED = {"KUBECONFIG": "/etc/kubeconfig"}


@pytest.fixture
def asked(tmp_path):
    """By a pod that has a service account."""
    (tmp_path / "token").write_text("secret")
    return ReportChoice(Reports.AUTO, "node-1", service_account=tmp_path)


@pytest.mark.parametrize(
    ("reports", "environment", "token", "found"),
    [
        (Reports.AUTO, SERVICE, True, "account"),
        (Reports.AUTO, SERVICE | NAMED, True, "account"),
        (Reports.AUTO, SERVICE, False, None),
        (Reports.AUTO, NAMED, True, None),  # somebody's shell
        (Reports.AUTO, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True, None),
        (Reports.ON, SERVICE | NAMED, True, "account"),
        (Reports.ON, SERVICE | NAMED, False, "file"),
        (Reports.ON, NAMED, True, "file"),
        (Reports.ON, {}, True, None),
    ],
)
def test_the_service_account_wins_over_a_requested_kubeconfig(asked, reports, environment, token, found):
    if not token:
        (asked.service_account / "token").unlink()
    wanted = {"account": asked.service_account, "file": Path(NAMED["KUBECONFIG"]), None: None}[found]
    assert credentials.find(replace(asked, reports=reports), environment) == wanted


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("node-1", True), ("ip-10-0-0-1.eu.internal", True), ("", False), ("Node", False), ("a/../b", False),
        ("a?b", False), ("-a", False), ("a" * 254, False), ("a..b", False), ("a b", False), ("a\n", False),
    ],
)  # fmt: skip
def test_a_name_is_one_that_a_node_may_have(name, good):
    assert is_subdomain(name) is good
