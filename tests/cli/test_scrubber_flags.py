"""The flags of the scrub service: they override the environment, which overrides the file; a fault names its origin."""

import os
from dataclasses import fields
from itertools import chain
from pathlib import Path

import pytest

from ground import unix_sockets
from policies.values import FenceMode
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
        "operator_namespace": "mine", "fence": "watch", "exempt_unit": "a.service", "standby": True,
        "node_name": "node-7",
        "cgroup_root": "/v2/mine",
    }  # fmt: skip
    wanted = ScrubberConfig(
        BackendChoice.SIMULATED, "fast", Path("/s"), Path("/r"), Path("/k"), Path("/l"), Path("/h"),
        SightMode.NAMESPACE, 9, 172_800.0, Path("/g"), 7, 2**20, Path("/c"), "127.0.0.1:9475", "error",
        "json", ("mine",), FenceMode.WATCH, ("a.service",), standby=True, node_name="node-7",
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


LONG = "/" + "r" * RUN_DIR_LIMIT
LONG_RUN_DIRS = {
    "a flag": (["--run-dir", LONG], {}),
    "a file": ([], {"text": f"run-dir: {LONG}\n"}),
    "a variable": ([], {"AUTOCLAVE_RUN_DIR": LONG.replace("rr", "ü")}),
}


@pytest.mark.parametrize("origin", LONG_RUN_DIRS)
def test_a_run_directory_leaves_room_for_its_sockets(resolve, tmp_path, origin):
    flags, more = LONG_RUN_DIRS[origin]
    with pytest.raises(ValueError, match=" by 1 byte") as caught:
        resolve(*flags, **more)
    assert (f"{tmp_path}/config.yaml:1:10: " in str(caught.value)) is (origin == "a file")


def test_the_longest_possible_socket_path_is_accepted(resolve):
    assert resolve("--run-dir", "/" + "r" * (RUN_DIR_LIMIT - 1)).run_dir
