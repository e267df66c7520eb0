"""The configuration: a later source overrides an earlier one, and every fault names its origin."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from pydantic import ValidationError

from scrubber import config
from scrubber.config import BackendChoice, LogFormat, LogLevel, ScrubberConfig, SightMode
from scrubber.ground import unix_sockets
from scrubber.ground.errors import FatalError

RUN_DIR_LIMIT = unix_sockets.MAX_PATH_BYTES - len("/scrubber.sock")


@pytest.fixture
def file(tmp_path):
    """Write a configuration file and resolve it, with an environment and flags."""

    def resolve(text: str, environ: Mapping[str, str] = MappingProxyType({}), **flags: object) -> ScrubberConfig:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return config.resolve(path, dict(environ), flags)

    return resolve


def test_without_settings_the_defaults_apply():
    resolved = config.resolve(None, {}, {})
    assert resolved == ScrubberConfig()
    assert resolved.backend is BackendChoice.AUTO
    assert resolved.socket == Path("/run/autoclave/scrubber.sock")
    assert resolved.admin_socket == Path("/run/autoclave/admin.sock")
    assert resolved.ledger == Path("/var/lib/autoclave/ledger.db")
    assert resolved.kubelet_dir == Path("/var/lib/kubelet/device-plugins")
    assert resolved.simulated_dir == Path("/var/lib/autoclave/simulated")


def test_flags_override_environment_and_environment_overrides_file(file):
    text = "policy: strict\nlog-level: debug\nsimulated_gpus: 4\n"
    environ = {"AUTOCLAVE_LOG_LEVEL": "warning", "AUTOCLAVE_SIMULATED_GPUS": "5"}
    found = file(text, environ, simulated_gpus=6, backend=None)
    assert (found.policy, found.log_level, found.simulated_gpus) == ("strict", LogLevel.WARNING, 6)


def test_every_setting_works_in_every_source(file):
    given = {
        "backend": "simulated", "policy": "fast", "state_dir": "/s", "run_dir": "/r", "kubelet_dir": "/k",
        "pod_logs_dir": "/l", "host_root": "/h", "sight": "namespace",
        "simulated_dir": "/g", "simulated_gpus": 7, "simulated_memory": "1MiB", "log_level": "error",
        "log_format": "json", "metrics_address": "127.0.0.1:9475", "simulated_cdi_dir": "/c",
    }  # fmt: skip
    wanted = ScrubberConfig.model_validate(
        {
            **given, "backend": BackendChoice.SIMULATED, "sight": SightMode.NAMESPACE, "log_level": LogLevel.ERROR,
            "log_format": LogFormat.JSON,
        }
    )  # fmt: skip
    assert set(given) == set(ScrubberConfig.model_fields)
    kebab = "".join(f"{name.replace('_', '-')}: {value}\n" for name, value in given.items())
    environ = {f"AUTOCLAVE_{name.upper()}": str(value) for name, value in given.items()}
    assert file(kebab) == wanted
    assert config.resolve(None, environ, {}) == wanted
    assert config.resolve(None, {}, given) == wanted


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, "/var/log/pods"),
        ({"host_root": "/host"}, "/host/var/log/pods"),
        ({"host_root": "/host", "pod_logs_dir": "/data/logs"}, "/host/data/logs"),
        ({"host_root": "/host", "pod_logs_dir": "//data"}, "/host/data"),
        ({"pod_logs_dir": "/data"}, "/data"),
    ],
)
def test_pod_logs_are_below_the_host_root(given, seen):
    assert config.resolve(None, {}, given).pod_logs == Path(seen)


def test_simulated_gpus_are_in_the_state_directory_by_default():
    assert config.resolve(None, {}, {"state_dir": "/s"}).simulated_dir == Path("/s/simulated")
    assert config.resolve(None, {}, {"state_dir": "/s", "simulated_dir": "/g"}).simulated_dir == Path("/g")
    assert ScrubberConfig(state_dir=Path("/s")).simulated_dir == Path("/s/simulated")


def test_a_relative_path_in_a_flag_means_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config.resolve(None, {"AUTOCLAVE_STATE_DIR": "s"}, {}).state_dir == tmp_path / "s"
    assert config.resolve(None, {}, {"state_dir": "s"}).state_dir == tmp_path / "s"


def test_an_empty_variable_counts_as_not_given():
    assert config.resolve(None, {"AUTOCLAVE_POLICY": ""}, {}).policy == "default"


def test_variables_of_other_verbs_are_ignored():
    environ = {"AUTOCLAVE_OUTPUT": "json", "AUTOCLAVE_PORT": "tcp://10.0.0.1:1"}
    assert config.resolve(None, environ, {}) == ScrubberConfig()


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "# policy: strict\n\n  # later\n", "{}\n"])
def test_an_empty_file_means_all_defaults(file, text):
    assert file(text) == ScrubberConfig()


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("polici: strict\n", "1:1", "polici: found an unknown key, expected one of backend, policy"),
        ("polici: strict\n", "1:1", "(did you mean policy?)"),
        ("policy: fast\npolicy: fast\n", "2:1", "found a duplicate key (first on line 1)"),
        ("run-dir: /a\nrun_dir: /b\n", "2:1", "found a duplicate key (first on line 1)"),
        ("policy: 5\n", "1:9", "found the number 5, expected text"),
        ("policy:\n", "1:1", "found nothing, expected a value"),
        ("policy: ''\n", "1:9", "expected text that is not empty"),
        ("state-dir: state\n", "1:12", 'found text "state", expected an absolute path'),
        ("state-dir: 5\n", "1:12", "found the number 5, expected an absolute path"),
        ("simulated-gpus: 0\n", "1:17", "found the number 0, expected at least 1"),
        ("simulated-gpus: 257\n", "1:17", "found the number 257, expected at most 256"),
        ("simulated-gpus: '2'\n", "1:17", 'found text "2", expected a whole number'),
        ("simulated-memory: 64\n", "1:19", "expected a size of whole bytes such as 64MiB"),
        ("simulated-memory: 1KiB\n", "1:19", "expected between 4KiB and 1TiB"),
        ("metrics-address: ':9475'\n", "1:18", "expected HOST:PORT"),
        ("metrics-address: 127.0.0.1:99999\n", "1:18", "expected HOST:PORT"),
        ("backend: amd\n", "1:10", "expected auto or nvidia or simulated"),
        ("log-level: loud\n", "1:12", "expected debug or info or warning or error"),
        ("log-format: xml\n", "1:13", "expected auto or console or json"),
        (f"run-dir: /{'r' * RUN_DIR_LIMIT}\n", "1:10", "found a path too long by 1 bytes"),
        ("- policy\n", "1:1", "found a list, expected a mapping"),
        ("policy: [\n", "2:1", "found broken YAML"),
        ("policy: &a fast\n", "1:9", "found the anchor"),
        ("5\n", "1:1", "expected a mapping"),
    ],
)
def test_a_fault_names_its_line_and_column(file, tmp_path, text, place, message):
    with pytest.raises(FatalError) as caught:
        file(text)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"cannot use the configuration {tmp_path}/config.yaml: correct these faults"
    assert len(lines) == 2
    assert lines[1].startswith(f"{tmp_path}/config.yaml:{place}: ")
    assert message in lines[1]


def test_all_faults_of_a_file_are_listed_in_order(file):
    with pytest.raises(FatalError) as caught:
        file("state-dir: x\npolicies: y\nsimulated-gpus: 0\nlog-level:\n")
    assert [line.split(":")[1] for line in str(caught.value).splitlines()[1:]] == ["1", "2", "3", "4"]


def test_an_overridden_wrong_value_is_still_refused(file):
    with pytest.raises(FatalError, match="expected at least 1"):
        file("simulated-gpus: 0\n", simulated_gpus=2)


@pytest.mark.parametrize(
    ("environ", "flags", "message"),
    [
        (
            {"AUTOCLAVE_SIMULATED_GPUS": "two"},
            {},
            'AUTOCLAVE_SIMULATED_GPUS: found text "two", expected a whole number',
        ),
        ({"AUTOCLAVE_SIMULATED_GPUS": "0"}, {}, "AUTOCLAVE_SIMULATED_GPUS: found the number 0, expected at least 1"),
        ({"AUTOCLAVE_BACKEND": "amd"}, {}, 'AUTOCLAVE_BACKEND: found text "amd"'),
        ({}, {"simulated_memory": "64MB"}, '--simulated-memory: found text "64MB", expected a size'),
        ({}, {"run_dir": "/" + "r" * RUN_DIR_LIMIT}, "--run-dir: found a path too long by 1 bytes"),
        ({"AUTOCLAVE_RUN_DIR": "/" + "ü" * 60}, {}, "AUTOCLAVE_RUN_DIR: found a path too long by 28 bytes"),
    ],
)
def test_a_wrong_value_names_its_variable_or_flag(environ, flags, message):
    with pytest.raises(FatalError) as caught:
        config.resolve(None, environ, flags)
    assert str(caught.value).startswith(f"cannot use {message}")


def test_several_wrong_values_make_one_line():
    with pytest.raises(FatalError) as caught:
        config.resolve(None, {"AUTOCLAVE_LOG_LEVEL": "loud"}, {"simulated_gpus": 0})
    assert "AUTOCLAVE_LOG_LEVEL: " in str(caught.value)
    assert "; --simulated-gpus: " in str(caught.value) or "--simulated-gpus: " in str(caught.value).split("; ")[0]
    assert "\n" not in str(caught.value)


def test_the_longest_possible_socket_path_is_accepted():
    assert config.resolve(None, {}, {"run_dir": "/" + "r" * (RUN_DIR_LIMIT - 1)}).run_dir


def test_an_unreadable_file_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(FatalError, match="No such file or directory; name another with --config"):
        config.resolve(tmp_path / "none.yaml", {}, {})
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FatalError, match="it is not UTF-8 text; name another with --config"):
        config.resolve(tmp_path / "binary.yaml", {}, {})


def test_a_configuration_is_immutable():
    with pytest.raises(ValidationError):
        setattr(ScrubberConfig(), "policy", "fast")  # noqa: B010 - what a careless caller would do
