"""What can be asked of the plugin, and how it is told that something cannot work."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from plugin import config
from plugin.cluster import credentials, starting
from plugin.cluster.credentials import Reports
from plugin.config import Config, RegistrationMethod
from plugin.response import Strategy
from scrubber import config as of_the_service
from scrubber.ground import paths
from scrubber.ground.errors import FatalError


@pytest.fixture
def good(short_tmp):
    """Nothing to mend."""
    return Config(kubelet_dir=short_tmp, run_dir=short_tmp / "run", registry_dir=short_tmp)


def test_valid_options_pass_without_a_run_directory(good):
    config.check(good)


def test_the_defaults_are_those_of_the_service():
    assert (Config().run_dir, Config().kubelet_dir) == (Path(paths.RUN_DIR), Path(paths.KUBELET_DIR))
    assert Config().scrubber_socket == of_the_service.ScrubberConfig().socket


@pytest.mark.parametrize("prefix", ["nvidia.com", "a", "gpu.example.org", "x-1.y", "kubernetes.io.example.com"])
def test_a_domain_may_be_a_prefix(good, prefix):
    config.check(replace(good, resource_prefix=prefix))


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        ("", "not a lower-case domain"),
        ("NVIDIA.com", "not a lower-case domain"),
        ("nvidia.com/", "not a lower-case domain"),
        ("nvidia com", "not a lower-case domain"),
        ("-a.com", "not a lower-case domain"),
        ("a..com", "not a lower-case domain"),
        ("a.com\n", "not a lower-case domain"),
        ("kubernetes.io", "Kubernetes reserves names"),
        ("x.kubernetes.io", "Kubernetes reserves names"),
        ("requests.nvidia.com", "Kubernetes reserves names"),
        ("a" * 245, "longer than 244"),
    ],
)
def test_an_invalid_resource_prefix_is_refused(good, prefix, why):
    with pytest.raises(FatalError, match=why) as told:
        config.check(replace(good, resource_prefix=prefix))
    assert "--resource-prefix" in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kubelet_dir": Path("/nonexistent")}, "kubelet directory /nonexistent: no such file.*--kubelet-dir"),
        ({"kubelet_dir": Path("/etc/passwd")}, "kubelet directory /etc/passwd: it is not a directory"),
        ({"kubelet_dir": Path("/etc/passwd/x")}, "kubelet directory /etc/passwd/x: not a directory"),
        (
            {"registration": RegistrationMethod.REGISTRY, "registry_dir": Path("/nonexistent")},
            "registry /nonexistent.*--registry-dir",
        ),
        (
            {"run_dir": Path("/" + "d" * 100)},
            "115 bytes long and the kernel takes 107; give a shorter --run-dir",
        ),
        ({"cdi_kind": "gpu"}, "cannot use CDI kind"),
        ({"metrics_address": "9475"}, "cannot use --metrics-address '9475': expected HOST:PORT"),
        ({"metrics_address": "127.0.0.1:65536"}, "cannot use --metrics-address"),
        ({"metrics_address": "[127.0.0.1]:1"}, "cannot use --metrics-address"),
        ({"strategies": ()}, "no device list strategy"),
        ({"driver_root": Path("here")}, "absolute path"),
        ({"cluster_reports": Reports.ON, "node_name": "a/b"}, "--node-name 'a/b': not a valid name"),
        (
            {"cluster_reports": Reports.OFF, "taint_when_all_out": True},
            "--taint-when-all-out with --cluster-reports off",
        ),
        ({"cluster_reports": Reports.ON}, "report to the cluster: the name of the node is unknown: set --node-name"),
        (
            {"cluster_reports": Reports.ON, "node_name": "node-1", "service_account": Path("/nonexistent")},
            "no credentials: mount the token .* /nonexistent, or name .* KUBECONFIG; or set --cluster-reports off",
        ),
    ],
)
def test_invalid_options_are_one_line_with_the_remedy(good, change, told):
    with pytest.raises(FatalError, match=told) as error:
        config.check(replace(good, **change))
    assert "\n" not in str(error.value)


def test_a_registry_that_is_not_used_need_not_be_there(good):
    config.check(replace(good, registry_dir=Path("/nonexistent")))


def test_a_socket_path_may_be_as_long_as_the_kernel_takes(good):
    config.check(replace(good, run_dir=Path("/" + "d" * (107 - len("/scrubber.sock") - 1))))
    with pytest.raises(FatalError):
        config.check(replace(good, run_dir=Path("/" + "d" * (107 - len("/scrubber.sock")))))


def test_a_kubelet_directory_that_is_too_long_fails_first(good, short_tmp):
    deep = short_tmp / ("d" * 80)
    deep.mkdir()
    with pytest.raises(FatalError, match=r"gpu\.sock: it is .* bytes long and the kernel takes 107.*--kubelet-dir"):
        config.check(replace(good, kubelet_dir=deep))


def test_the_style_is_what_was_asked_for(good):
    chosen = replace(
        good, strategies=(Strategy.ENVVAR,), cdi_kind="a.io/b", pass_device_specs=True, driver_root=Path("/run/driver")
    )
    style = chosen.style
    assert (style.strategies, style.cdi_kind, style.pass_device_specs, style.dev_root) == (
        (Strategy.ENVVAR,), "a.io/b", True, "/run/driver",
    )  # fmt: skip


def test_no_reports_without_credentials(good):
    config.check(replace(good, node_name="node-1", service_account=Path("/nonexistent")))
    assert starting.reporter(replace(good, node_name="node-1", service_account=Path("/nonexistent")).cluster) is None


@pytest.mark.parametrize("change", [{"cluster_reports": Reports.OFF}, {"node_name": ""}])
def test_no_reports_without_a_node_name_or_when_off(good, short_tmp, monkeypatch, change):
    (short_tmp / "token").write_text("secret")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    chosen = replace(good, **{"node_name": "node-1", "service_account": short_tmp, **change})
    assert credentials.find(chosen.cluster, os.environ)
    assert starting.reporter(chosen.cluster) is None


def test_unusable_credentials_are_fatal_only_with_reports_on(good, short_tmp, monkeypatch):
    (short_tmp / "token").write_text("secret")  # and no certificate
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    chosen = replace(good, node_name="node-1", service_account=short_tmp)
    with capture_logs() as lines:
        assert starting.reporter(chosen.cluster) is None
    assert [line["event"] for line in lines] == ["nothing is reported to the cluster"]
    with pytest.raises(FatalError, match="cannot report to the cluster: cannot use the credentials"):
        starting.reporter(replace(chosen, cluster_reports=Reports.ON).cluster)
