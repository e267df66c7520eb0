"""What can be asked of the plugin, and how it is told that something cannot work."""

from dataclasses import replace
from pathlib import Path

import pytest

from ground import paths
from ground.errors import FatalError
from plugin import config
from plugin.cluster.report_choice import ReportChoice, Reports
from plugin.config import Config
from plugin.devices import MigStrategy
from plugin.response import Style
from scrubber import config as of_the_service


@pytest.fixture
def good(short_tmp):
    """Nothing to mend."""
    return Config(kubelet_dir=short_tmp, run_dir=short_tmp / "run")


def test_valid_options_pass_without_a_run_directory(good):
    config.check(good)


def test_the_defaults_are_those_of_the_service():
    assert (Config().run_dir, Config().kubelet_dir) == (Path(paths.RUN_DIR), Path(paths.KUBELET_DIR))
    assert Config().scrubber_socket == paths.scrubber_socket(of_the_service.ScrubberConfig().run_dir)


@pytest.mark.parametrize("prefix", ["nvidia.com", "a", "gpu.example.org", "x-1.y", "kubernetes.io.example.com"])
def test_a_domain_may_be_a_prefix(good, prefix):
    config.check(replace(good, resource_prefix=prefix))


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        ("", "not a lower-case domain"),
        ("NVIDIA.com", "not a lower-case domain"),
        ("kubernetes.io", "Kubernetes reserves names"),
        ("x.kubernetes.io", "Kubernetes reserves names"),
        ("requests.nvidia.com", "Kubernetes reserves names"),
        ("a" * 245, "longer than 244"),
    ],
)
def test_an_invalid_resource_prefix_is_refused(good, prefix, why):
    with pytest.raises(FatalError, match=why) as message:
        config.check(replace(good, resource_prefix=prefix))
    assert "--resource-prefix" in str(message.value)
    assert "\n" not in str(message.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kubelet_dir": Path("/etc/passwd")}, "kubelet directory /etc/passwd: it is not a directory.*--kubelet-dir"),
        ({"kubelet_dir": Path("/etc/passwd/x")}, "kubelet directory /etc/passwd/x: not a directory"),
        (
            {"run_dir": Path("/" + "d" * 100)},
            "115 bytes long, and the kernel accepts at most 107; give a shorter --run-dir",
        ),
        ({"style": Style(cdi_kind="gpu")}, "cannot use CDI kind"),
        ({"style": Style(strategies=())}, "no device list strategy"),
        ({"style": Style(dev_root="here")}, "absolute path"),
        ({"cluster": ReportChoice(Reports.ON, "a/b")}, "--node-name 'a/b': not a valid name"),
        (
            {"cluster": ReportChoice(nvsentinel_socket=Path("/s"))},
            "report to NVSentinel: --node-name '' is not a valid",
        ),
        (
            {"cluster": ReportChoice(node="n", nvsentinel_socket=Path("/" + "s" * 107))},
            "108 bytes long, .* give a shorter --nvsentinel-socket",
        ),
        (
            {"cluster": ReportChoice(Reports.ON)},
            "report to the cluster: the name of the node is unknown: set --node-name",
        ),
        (
            {"cluster": ReportChoice(Reports.ON, "node-1", service_account=Path("/nonexistent"))},
            "no credentials: mount the token .* /nonexistent, or name .* KUBECONFIG; or set --cluster-reports off",
        ),
    ],
)
def test_invalid_options_are_one_line_with_the_remedy(good, change, message):
    with pytest.raises(FatalError, match=message) as error:
        config.check(replace(good, **change))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("below", "change", "message"),
    [
        ("vendor", {"mig_strategy": MigStrategy.SINGLE}, "the vendor's plugin decides them"),
        ("vendor", {"style": Style(pass_device_specs=True)}, "the vendor's plugin decides them"),
        ("", {}, "it is the kubelet's own directory; give one below it"),
    ],
)
def test_the_directory_of_a_vendor_is_its_own(good, short_tmp, below, change, message):
    with pytest.raises(FatalError, match=message):
        config.check(replace(good, vendor_dir=short_tmp / below, **change))
    config.check(replace(good, vendor_dir=short_tmp / "vendor"))


def test_the_directory_of_a_vendor_is_made_in_another(good, short_tmp):
    config.make_vendor_dir(replace(good, vendor_dir=short_tmp / "vendor"))
    assert (short_tmp / "vendor").is_dir()
    with pytest.raises(FatalError, match="no such file or directory; give a directory that can be made"):
        config.make_vendor_dir(replace(good, vendor_dir=short_tmp / "absent/vendor"))


def test_a_socket_path_may_have_the_kernels_maximum_length(good):
    config.check(replace(good, run_dir=Path("/" + "d" * (107 - len("/scrubber.sock") - 1))))
    with pytest.raises(FatalError):
        config.check(replace(good, run_dir=Path("/" + "d" * (107 - len("/scrubber.sock")))))


def test_a_kubelet_directory_that_is_too_long_fails_first(good, short_tmp):
    deep = short_tmp / ("d" * 80)
    deep.mkdir()
    with pytest.raises(
        FatalError, match=r"gpu-.{4}\.sock: it is .* bytes long, and the kernel accepts at most 107.*--kubelet-dir"
    ):
        config.check(replace(good, kubelet_dir=deep))
