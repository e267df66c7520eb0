"""The container toolkit's configuration and CDI specifications, as files under a root."""

import json

import pytest

from autoclave.doctor.facts import container_toolkit
from autoclave.doctor.node_facts import Toolkit
from tests.doctor.nodes import at

CONFIG = "etc/nvidia-container-runtime/config.toml"
ENVIRONMENT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
SPEC = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "GPU-1", "containerEdits": {}}, {"name": "all", "containerEdits": {}}],
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
}
YAML = """---
cdiVersion: 0.6.0
kind: nvidia.com/gpu
devices:
    - name: GPU-2
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia1
containerEdits: {}
"""


def write(root, name, text=""):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(
    ("text", "by_environment", "by_mounts"),
    [
        ("", True, False),
        (f"#{ENVIRONMENT} = false\n", True, False),
        (f"{ENVIRONMENT} = false\n{MOUNTS} = true\n", False, True),
        (f"{ENVIRONMENT} = true\n[nvidia-container-cli]\nload-kmods = true\n", True, False),
        (f"[nvidia-container-cli]\n{ENVIRONMENT} = false\n", True, False),  # not where the toolkit looks
    ],
)
def test_missing_settings_have_the_toolkits_defaults(tmp_path, text, by_environment, by_mounts):
    write(tmp_path, CONFIG, text)
    [found] = container_toolkit.toolkit(at(tmp_path)).configs
    assert (found.by_environment, found.by_mounts, found.fault) == (by_environment, by_mounts, None)


@pytest.mark.parametrize("text", ["= =", f'{ENVIRONMENT} = "false"', f"{ENVIRONMENT} = 0", f'{MOUNTS} = "x"', "\x00"])
def test_a_configuration_that_cannot_be_understood_is_a_fault(tmp_path, text):
    write(tmp_path, CONFIG, text)
    [found] = container_toolkit.toolkit(at(tmp_path)).configs
    assert found.fault is not None


def test_a_directory_instead_of_the_configuration_is_a_fault(tmp_path):
    (tmp_path / CONFIG).mkdir(parents=True)
    [found] = container_toolkit.toolkit(at(tmp_path)).configs
    assert found.fault is not None


def test_the_operators_configuration_is_read_beside_that_of_the_packages(tmp_path):
    assert container_toolkit.toolkit(at(tmp_path)) == Toolkit(False)
    write(tmp_path, CONFIG, f"{ENVIRONMENT} = false")
    write(tmp_path, f"usr/local/nvidia/toolkit/.config/{CONFIG.removeprefix('etc/')}")
    assert [it.by_environment for it in container_toolkit.toolkit(at(tmp_path)).configs] == [False, True]


@pytest.mark.parametrize("program", container_toolkit.PROGRAMS)
def test_a_toolkit_without_a_configuration_is_recognised_from_its_programs(tmp_path, program):
    write(tmp_path, program)
    assert container_toolkit.toolkit(at(tmp_path)) == Toolkit(True)


def test_specifications_are_read_as_yaml_and_json_only(tmp_path):
    assert container_toolkit.cdi(at(tmp_path)) == ()
    write(tmp_path, "etc/cdi/nvidia.json", json.dumps(SPEC))
    write(tmp_path, "var/run/cdi/nvidia.yaml", YAML)
    write(tmp_path, "run/cdi/readme.txt", "no")
    write(tmp_path, "run/cdi/nvidia.yaml.tmp", "no")
    assert [(it.kind, sorted(it.names), it.fault) for it in container_toolkit.cdi(at(tmp_path))] == [
        ("nvidia.com/gpu", ["GPU-1", "all"], None),
        ("nvidia.com/gpu", ["GPU-2"], None),
    ]


def test_a_linked_var_run_stays_inside_the_host_root(tmp_path):
    write(tmp_path, "elsewhere/cdi/other.yaml", YAML)
    write(tmp_path, "host/run/cdi/nvidia.yaml", YAML)
    (tmp_path / "host/var").mkdir()
    (tmp_path / "host/var/run").symlink_to(tmp_path / "elsewhere")
    assert [it.path for it in container_toolkit.cdi(at(tmp_path / "host"))] == [
        str(tmp_path / "host/run/cdi/nvidia.yaml")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "{}", '{"kind": "a/b", "devices": [{}]}', '{"kind": 1, "devices": []}', "{" * 9, "\x00",
        '{"kind": "a/b", "devices": [{"name": 7}]}', '{"kind": "a/b", "devices": 7}', "[" * 100_000,
        '{"kind": "a/b", "devices": {"name": "x"}}',
    ],
    ids=lambda text: text[:40] or "nothing",
)  # fmt: skip
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_an_invalid_specification_is_a_finding(tmp_path, text, form):
    write(tmp_path, f"etc/cdi/a.{form}", text)
    [found] = container_toolkit.cdi(at(tmp_path))
    assert (found.fault is None, found.names) == (False, frozenset())


def test_a_specification_without_devices_is_accepted(tmp_path):
    write(tmp_path, "etc/cdi/a.json", '{"kind": "a.b/c", "devices": null}')
    [found] = container_toolkit.cdi(at(tmp_path))
    assert (found.kind, found.names, found.fault) == ("a.b/c", frozenset(), None)


def test_a_file_instead_of_the_directory_is_a_fault(tmp_path):
    write(tmp_path, "etc/cdi")
    [found] = container_toolkit.cdi(at(tmp_path))
    assert found.fault is not None
