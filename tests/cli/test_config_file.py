"""A configuration file: what it sets, and how a wrong one is told."""

import click
import pytest

from autoclave import cli
from autoclave.cli import config_file
from ground.errors import FatalError


@pytest.fixture
def load(tmp_path):
    """Load a text as the file of ``autoclave plugin``."""

    def load(text: str) -> dict[str, object]:
        file = tmp_path / "plugin.yaml"
        file.write_text(text)
        root = click.Context(cli.cli, info_name="autoclave")
        verb = cli.cli.get_command(root, "plugin")
        assert verb is not None
        return config_file.load(file, click.Context(verb, parent=root, info_name="plugin"))

    return load


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}\n", "---\n{}\n"])
def test_an_empty_configuration_file_sets_no_flag(load, text):
    assert load(text) == {}


def test_keys_are_flags_with_dashes_or_underscores(load):
    text = "run-dir: /run/a\nresource_prefix: a.io\npass-device-specs: false\nstrategy: [envvar, cdi-cri]\n"
    assert load(text) == {
        "run_dir": "/run/a",
        "resource_prefix": "a.io",
        "pass_device_specs": False,
        "strategy": ["envvar", "cdi-cri"],
    }


@pytest.mark.parametrize("value", ["envvar", "envvar,cdi-cri", "[envvar]"])
def test_a_repeatable_flag_takes_one_value_or_a_list(load, value):
    assert list(load(f"strategy: {value}\n")) == ["strategy"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("config: /x\n", ":1:1: config: found a key that no flag has"),
        ("run-dir: /a\nrun_dir: /b\n", ":2:1: run_dir: found a duplicate key (first on line 1)"),
        ("run-dir:\n", ":1:1: run-dir: found nothing"),
        ("run-dir: [/a]\n", ":1:10: run_dir: found a list, expected text"),
        ("strategy: [envvar, 5]\n", ":1:11: strategy: found a list, expected text, or a list of texts"),
        ("strategy: magic\n", "unknown device list strategy 'magic'"),
        ("pass-device-specs: yes\n", ':1:20: pass_device_specs: found text "yes", expected true or false'),
        ("- run-dir\n", ":1:1: found a list, expected a mapping"),
        ("run-dir: [\n", "found broken YAML"),
        ("run-dir: &a /x\n", "found the anchor"),
    ],
)
def test_a_fault_is_one_line_with_its_place(load, text, reason):
    with pytest.raises(FatalError) as error:
        load(text)
    assert reason in str(error.value)
    first, *faults = str(error.value).splitlines()
    assert first.startswith("cannot use the configuration /")
    assert len(faults) == 1


def test_all_faults_of_the_file_are_reported_at_once(load):
    with pytest.raises(FatalError, match=r"nope: .*\n.*log_level: "):
        load("nope: 1\nlog-level: loud\n")


def test_an_unreadable_configuration_file_is_reported(tmp_path):
    context = click.Context(cli.cli, info_name="autoclave")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    verb = cli.cli.get_command(context, "plugin")
    assert verb is not None
    for name, why in (("absent", "No such file"), ("binary", "it is not UTF-8 text")):
        with pytest.raises(FatalError, match=why):
            config_file.load(tmp_path / name, click.Context(verb, parent=context, info_name="plugin"))
