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


def test_a_configuration_that_is_no_text_is_reported(tmp_path):
    context = click.Context(cli.cli, info_name="autoclave")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    verb = cli.cli.get_command(context, "plugin")
    assert verb is not None
    with pytest.raises(FatalError, match="UTF-8"):
        config_file.load(tmp_path / "binary", click.Context(verb, parent=context, info_name="plugin"))
