"""The flags of the scrub service: they override the environment, which overrides the file; a fault names its origin."""

import os
from dataclasses import fields
from itertools import chain
from pathlib import Path

import pytest

from ground import unix_sockets
from scrubber import daemon
from scrubber.config import BackendChoice, ScrubberConfig, SightMode
from tests import default_dirs

RUN_DIR_LIMIT = unix_sockets.MAX_PATH_BYTES - len("/scrubber.sock")


@pytest.fixture
def resolve(autoclave, monkeypatch, tmp_path):
    """The configuration of the service, from its flags, the environment and the text of a file."""
    started: list[ScrubberConfig] = []
    for name in default_dirs.NOWHERE:
        monkeypatch.delenv(name)
    monkeypatch.setattr(daemon, "run", started.append)

    def resolve(*flags: object, text: str | None = None, **environ: str) -> ScrubberConfig:
        if text is not None:
            (tmp_path / "config.yaml").write_text(text)
            flags = (*flags, "--config", tmp_path / "config.yaml")
        run = autoclave("scrubber", *flags, **environ)
        if run.exit_code:
            assert run.exit_code == 2
            raise ValueError(run.stderr)
        return started.pop()

    return resolve


def test_without_settings_the_defaults_apply(resolve):
    resolved = resolve()
    assert resolved == ScrubberConfig()
    assert resolved.backend is BackendChoice.AUTO
    assert resolved.run_dir == Path("/run/autoclave")
    assert resolved.state_dir == Path("/var/lib/autoclave")
    assert resolved.kubelet_dir == Path("/var/lib/kubelet/device-plugins")
    assert resolved.simulation == Path("/var/lib/autoclave/simulated")


def test_flags_override_environment_and_environment_overrides_file(resolve):
    text = "policy: strict\nlog-level: debug\nsimulated_gpus: 4\n"
    environ = {"AUTOCLAVE_LOG_LEVEL": "warning", "AUTOCLAVE_SIMULATED_GPUS": "5"}
    found = resolve("--simulated-gpus", 6, text=text, **environ)
    assert (found.policy, found.log_level, found.simulated_gpus) == ("strict", "warning", 6)


def test_every_setting_works_in_every_source(resolve):
    given = {
        "backend": "simulated", "policy": "fast", "state_dir": "/s", "run_dir": "/r", "kubelet_dir": "/k",
        "pod_logs_dir": "/l", "host_root": "/h", "sight": "namespace", "evidence_rows": 9, "evidence_age": "2d",
        "simulated_dir": "/g", "simulated_gpus": 7, "simulated_memory": "1MiB", "log_level": "error",
        "log_format": "json", "metrics_address": "127.0.0.1:9475", "simulated_cdi_dir": "/c",
        "operator_namespace": "mine", "create_gate": "/p", "gate_cdi_dir": "/d",
        "runtime_request_timeout": "5m", "standby": True, "node_name": "node-7",
        "cgroup_root": "/v2/mine",
    }  # fmt: skip
    wanted = ScrubberConfig(
        BackendChoice.SIMULATED, "fast", Path("/s"), Path("/r"), Path("/k"), Path("/l"), Path("/h"),
        SightMode.NAMESPACE, 9, 172_800.0, Path("/g"), 7, 2**20, Path("/c"), "127.0.0.1:9475", "error",
        "json", ("mine",), Path("/p"), Path("/d"), 300.0, standby=True, node_name="node-7",
        cgroup_root=Path("/v2/mine"),
    )  # fmt: skip
    assert set(given) == {field.name for field in fields(ScrubberConfig)}
    names = {name: name.replace("_", "-") for name in given}
    assert resolve(text="".join(f"{names[name]}: {value}\n" for name, value in given.items())) == wanted
    assert resolve(**{f"AUTOCLAVE_{name.upper()}": str(value) for name, value in given.items()}) == wanted
    words = ((f"--{names[name]}", *(() if value is True else (value,))) for name, value in given.items())
    assert resolve(*chain(*words)) == wanted


@pytest.mark.parametrize(
    ("flags", "seen"),
    [
        ([], "/var/log/pods"),
        (["--host-root", "/host"], "/host/var/log/pods"),
        (["--host-root", "/host", "--pod-logs-dir", "/data/logs"], "/host/data/logs"),
        (["--host-root", "/host", "--pod-logs-dir", "//data"], "/host/data"),
        (["--pod-logs-dir", "/data"], "/data"),
    ],
)
def test_pod_logs_are_below_the_host_root(resolve, flags, seen):
    assert resolve(*flags).pod_logs == Path(seen)


def test_simulated_gpus_are_in_the_state_directory_by_default(resolve):
    assert resolve("--state-dir", "/s").simulation == Path("/s/simulated")
    assert resolve("--state-dir", "/s", "--simulated-dir", "/g").simulation == Path("/g")


def test_a_relative_path_in_a_flag_means_the_working_directory(resolve, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve(AUTOCLAVE_STATE_DIR="s").state_dir == tmp_path / "s"
    assert resolve("--state-dir", "s").state_dir == tmp_path / "s"


def test_a_directory_need_not_be_readable_before_its_use(resolve, tmp_path, monkeypatch):
    """On a machine with Autoclave, the default is a directory of root's, whoever reads the flags."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert resolve("--run-dir", tmp_path).run_dir == tmp_path


def test_an_empty_variable_counts_as_not_given(resolve):
    assert resolve(AUTOCLAVE_POLICY="").policy == "default"


def test_variables_of_other_verbs_are_ignored(resolve):
    assert resolve(AUTOCLAVE_OUTPUT="json", AUTOCLAVE_PORT="tcp://10.0.0.1:1") == ScrubberConfig()


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("polici: strict\n", "1:1", "expected one of the flags of `autoclave scrubber --help` (did you mean policy?)"),
        ("policy: 5\n", "1:9", "found the number 5, expected text such as default"),
        ("state-dir: state\n", "1:12", 'found text "state", expected an absolute path'),
        ("simulated-gpus: 0\n", "1:17", "0 is not in the range 1<=x<=256"),
        ("simulated-gpus: '2'\n", "1:17", 'found text "2", expected a whole number'),
        ("simulated-memory: 64\n", "1:19", "expected text such as 64MiB"),
        ("simulated-memory: 64MB\n", "1:19", "expected a size of whole bytes such as 64MiB"),
        ("simulated-memory: 1KiB\n", "1:19", "expected between 4KiB and 1TiB"),
        ("metrics-address: ':9475'\n", "1:18", "expected HOST:PORT"),
        ("backend: amd\n", "1:10", "'amd' is not one of 'auto', 'nvidia', 'simulated'"),
        (f"run-dir: /{'r' * RUN_DIR_LIMIT}\n", "1:10", "the path is too long by 1 byte"),
        ('run-dir: "/a\\0b"\n', "1:10", "the value has a null byte"),
    ],
)
def test_a_fault_names_its_line_and_column(resolve, tmp_path, text, place, message):
    with pytest.raises(ValueError, match="cannot use") as caught:
        resolve(text=text)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"autoclave: cannot use the configuration {tmp_path}/config.yaml: correct these faults"
    assert len(lines) == 2
    assert lines[1].startswith(f"{tmp_path}/config.yaml:{place}: ")
    assert message in lines[1]


def test_an_overridden_wrong_value_is_still_refused(resolve):
    with pytest.raises(ValueError, match="0 is not in the range"):
        resolve("--simulated-gpus", 2, text="simulated-gpus: 0\n")


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        ([], {"AUTOCLAVE_SIMULATED_GPUS": "two"}, "(from AUTOCLAVE_SIMULATED_GPUS)"),
        ([], {"AUTOCLAVE_BACKEND": "amd"}, "(from AUTOCLAVE_BACKEND)"),
        (["--simulated-memory", "64MB"], {}, "'--simulated-memory': found '64MB', expected a size"),
        (["--metrics-address", "9475"], {}, "'--metrics-address': found '9475', expected HOST:PORT"),
        (["--metrics-address", "127.0.0.1:65536"], {}, "expected HOST:PORT"),
        (["--metrics-address", "[127.0.0.1]:1"], {}, "'--metrics-address': found"),
        (["--policy", ""], {}, "'--policy': found '', expected the name of a shipped policy, or a file"),
        (["--state-dir", ""], {}, "'--state-dir': the value is empty, expected a path"),
        (["--run-dir", "/" + "r" * RUN_DIR_LIMIT], {}, "'--run-dir': the path is too long by 1 byte"),
        ([], {"AUTOCLAVE_RUN_DIR": "/" + "ü" * 60}, "the path is too long by 28 bytes"),
    ],
)
def test_a_wrong_value_names_its_variable_or_flag(resolve, flags, environ, message):
    with pytest.raises(ValueError, match="invalid value") as caught:
        resolve(*flags, **environ)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_longest_possible_socket_path_is_accepted(resolve):
    assert resolve("--run-dir", "/" + "r" * (RUN_DIR_LIMIT - 1)).run_dir
