"""The entry: quick to load, one line for every failure, the right exit code."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress

import click
import pytest
from click.testing import CliRunner

from autoclave import cli
from autoclave.cli import failure, options, service_call
from autoclave.cli.verbs import scrub, wait
from ground import unix_sockets
from ground.documents.faults import DocumentError, DocumentFault
from ground.errors import FatalError, InvalidRequest, LedgerUnavailable, NotReady, Reason, Refused, Unreachable
from scrubber import __version__
from scrubber.devices.base import DeviceError
from tests import default_dirs

SLOW = {"grpc", "pydantic", "rich", "sqlite3", "ruamel", "asyncio", "structlog"}


def python(script, **env):
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env={**os.environ, **env}
    )


def test_help_loads_neither_verbs_nor_slow_modules():
    script = """
import sys
from autoclave import cli
sys.argv = ["autoclave", "--help"]
try:
    cli.main()
finally:
    print("LOADED", *sorted(sys.modules))
"""
    out = python(script).stdout
    loaded = set(out.rpartition("LOADED")[2].split())
    assert "Usage: autoclave" in out
    assert "click" in loaded
    assert not loaded & SLOW
    assert not {name for name in loaded if name.startswith(("autoclave.", "scrubber.", "policies"))} - {"autoclave.cli"}


ASKING = ("status", "scrub", "wait", "acquire", "release", "quarantine", "reinstate", "explain", "history", "receipt",
          "version")  # fmt: skip


def loaded_by(module):
    """Which modules are loaded once this one is."""
    return set(python(f"import sys, {module}; print(*sys.modules)").stdout.split())


def test_verbs_load_only_what_their_answers_need():
    """Each takes as long to load as all the rest."""
    loaded = loaded_by(", ".join(f"autoclave.cli.verbs.{cli.VERBS[verb][0]}" for verb in ASKING))
    assert "click" in loaded
    assert not loaded & {"pydantic", "ruamel", "structlog", "prometheus_client", "rich"}
    assert "scrubber.core.model" not in loaded  # what the service decides from; an answer is made of views


def test_a_service_with_simulated_gpus_loads_no_nvidia_modules():
    loaded = loaded_by("autoclave.cli; autoclave.cli.cli.get_command(None, 'scrubber')")
    assert "pydantic" in loaded
    assert not loaded & {"rich", "pygments", "pynvml", "scrubber.devices.nvidia.backend"}


def test_a_zygote_for_simulated_gpus_loads_no_nvidia_modules():
    loaded = loaded_by("scrubber.workers.zygote")
    assert "scrubber.devices.simulated.simulated_gpu" in loaded
    assert not loaded & {"asyncio", "grpc", "pydantic", "pynvml", "scrubber.devices.nvidia.gpu"}


def test_the_module_is_the_command():
    run = subprocess.run([sys.executable, "-m", "autoclave", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"autoclave {__version__}\n"


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, (_, line) in cli.VERBS.items()])
def test_the_list_shows_the_first_help_line_of_verbs(name, line):
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None
    assert command.name in {name, "command"}
    assert command.get_short_help_str(200) == line


def verbs(command, path=()):
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from verbs(command.get_command(click.Context(command), name), (*path, name))
    else:
        yield path, command


def flags():
    for path, command in verbs(cli.cli):
        for option in command.params:
            if isinstance(option, click.Option):
                yield pytest.param(command, option, id=" ".join((*path, max(option.opts, key=len))))


@pytest.mark.parametrize(("command", "option"), list(flags()))
def test_every_flag_is_also_a_variable_of_its_name(command, option):
    flag = max(option.opts, key=len).removeprefix("--")
    expected = f"AUTOCLAVE_{flag.replace('-', '_').upper()}"
    prefix = command.context_settings.get("auto_envvar_prefix", "")
    named = option.envvar or f"{prefix}_{option.name.upper()}"
    assert ([named] if isinstance(named, str) else named)[0] == expected  # others are what the surroundings call it


@pytest.mark.parametrize("group", sorted({path[0] for path, _ in verbs(cli.cli) if len(path) > 1}))
def test_the_list_of_verbs_has_whole_sentences(autoclave, group):
    listed = autoclave(group, "--help").stdout.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


def test_no_test_uses_the_default_directory_of_a_flag():
    given = [(it.values[1].name, it.values[1].default) for it in flags()]
    paths = [(name, each) for name, default in given for each in (default if isinstance(default, tuple) else [default])]
    directories = {(name, str(path)) for name, path in paths if str(path).startswith("/") and str(path) != "/"}
    assert {f"AUTOCLAVE_{name.upper()}" for name, _ in directories} == default_dirs.NOWHERE.keys()
    assert {path for _, path in directories} == {*default_dirs.PLACES}


def test_a_foreign_environment_variable_is_no_flag(autoclave):
    assert autoclave("policy", "show", "fast", AUTOCLAVE_VERSION="1.2", AUTOCLAVE_HELP="1").output.startswith("# yaml")


@pytest.mark.parametrize("words", [[], ["scrub"], ["policy", "check"]])
def test_help_and_a_verb_shows_the_help_of_the_verb(autoclave, words):
    run = autoclave("help", *words)
    assert (run.exit_code, run.stdout) == (0, autoclave(*words, "--help").stdout)


@pytest.mark.parametrize("args", [[], ["ledger"], ["policy"], ["simulate"]])
def test_without_a_verb_the_verbs_are_listed(autoclave, args):
    run = autoclave(*args)
    assert run.exit_code == 2
    assert "Commands:" in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(Reason.IN_USE, "cannot: x"), 1),
        (NotReady(Reason.SCRUBBING, "cannot: x"), 1),
        (LedgerUnavailable("cannot: x"), 1),
        (DeviceError("cannot: x"), 1),
        (InvalidRequest("cannot: x"), 2),
        (FatalError("cannot: x"), 2),
        (DocumentError(DocumentFault("cannot", 1, 1, "", "x", "y")), 2),
        (Unreachable("cannot: x"), 3),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error, code, capsys):
    assert failure.report(error) == code
    assert capsys.readouterr().err.startswith("autoclave: cannot")


def test_an_interrupt_exits_with_130_without_a_message(capsys):
    assert failure.report(click.Abort()) == 130
    assert capsys.readouterr().err == ""


@pytest.fixture
def fault():
    with pytest.raises(KeyError) as raised:
        raise KeyError("two\nlines")
    return raised.value


@pytest.mark.parametrize("variable", ["HOME", "XDG_STATE_HOME"])
def test_an_unexpected_error_leaves_a_report_to_paste(capsys, monkeypatch, tmp_path, fault, variable):
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/usr/bin/autoclave", "status", "a b"])
    assert failure.report(fault) == 1
    [file] = tmp_path.rglob("autoclave/*")
    name = r"KeyError: 'two\nlines'"
    assert capsys.readouterr().err == f"autoclave: unexpected error: {name}; report it with the text in {file}\n"
    report = file.read_text()
    assert report.startswith("`autoclave status 'a b'` ended with an unexpected error.\n\nBefore you publish")
    assert f"\n\n* autoclave {__version__}\n" in report
    assert report.endswith(f"{name}\n```\n")
    assert 'raise KeyError("two' in report
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_a_writable_home_the_report_goes_to_stderr(capsys, fault):
    assert failure.report(fault) == 1
    said = capsys.readouterr().err
    assert said.startswith(r"autoclave: unexpected error: KeyError: 'two\nlines'; report it as")
    assert "Traceback (most recent call last):" in said


def test_an_error_cannot_make_the_terminal_do_things(capsys):
    failure.report(Refused(Reason.IN_USE, "cannot scrub: used by \x1b[2Jevil\x07"))
    assert capsys.readouterr().err == "autoclave: cannot scrub: used by \\x1b[2Jevil\\x07\n"


@pytest.mark.parametrize("verb", [["policy", "schema"], ["--help"]])
def test_a_closed_pipe_prints_no_error(verb):
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "autoclave", *verb], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert run.stderr == ""


ANSWERS = {"a help": ["--help"], "words": ["xid", "79"], "a document": ["version", "-o", "yaml"], "a table": ["doctor"]}


@pytest.mark.parametrize("verb", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_an_answer_that_cannot_be_written_is_said(tmp_path, verb, where, why):
    command = [sys.executable, "-u", "-m", "autoclave", "--service-wait", "0s", *verb]
    words = os.environ | {"AUTOCLAVE_RUN_DIR": str(tmp_path)}
    run = subprocess.run(
        ["sh", "-c", f'exec "$@" {where}', "sh", *command], env=words, stderr=subprocess.PIPE, text=True, check=False
    )
    last = f"cannot write the answer to stdout: {why}; run the command again with another stdout"
    assert (run.returncode, run.stderr.splitlines()[-1]) == (1, f"autoclave: {last}")


@pytest.mark.parametrize("where", [">&- 2>&-", "2>/dev/full", "2>&-"])
def test_a_reason_that_cannot_be_written_keeps_its_code(tmp_path, where):
    command = [sys.executable, "-m", "autoclave", "--service-wait", "0s", "scrub", "0", "--run-dir", tmp_path]
    assert subprocess.run(["sh", "-c", f'exec "$@" {where}', "sh", *command], check=False).returncode == 3


def on_a_terminal(*command):
    """The exit code of a command, and the lines that it writes to a terminal as its stderr."""
    ours, theirs = pty.openpty()
    code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, check=False).returncode
    os.close(theirs)
    said = b""
    with suppress(OSError):  # the kernel reports that no process writes any more
        while part := os.read(ours, 65536):
            said += part
    os.close(ours)
    return code, said.decode().splitlines()


def test_on_a_terminal_each_remedy_has_its_line(tmp_path):
    command = [sys.executable, "-m", "autoclave", "--service-wait", "0s", "status", "--run-dir", tmp_path]
    code, [error, *hints] = on_a_terminal(*command)
    missing = f"cannot reach the scrub service at {tmp_path}/admin.sock: the socket does not exist"
    assert (code, error) == (3, f"autoclave: {missing}")
    assert len(hints) > 1
    assert {hint.partition(" hint: ")[:2] for hint in hints} == {("autoclave:", " hint: ")}
    assert hints[-1] == "autoclave: hint: `autoclave doctor` says more"
    piped = subprocess.run(command, capture_output=True, text=True, check=False)
    assert piped.stderr == "; ".join([error, *(hint.partition(" hint: ")[2] for hint in hints)]) + "\n"


def test_without_a_service_the_version_of_the_command_is_known(autoclave, tmp_path):
    run = autoclave("version", "--run-dir", tmp_path, "-o", "json")
    document = json.loads(run.stdout)
    assert (run.exit_code, document["client"], document["service"]) == (0, __version__, None)


def test_a_service_that_starts_or_stops_is_not_called_missing(autoclave, tmp_path):
    """So does one that hangs in its stop, and keeps a service on standby waiting."""
    lock = unix_sockets.lock_run_dir(tmp_path / "run")
    assert lock is not None
    for verb in (["status"], ["doctor", "--host-root", tmp_path]):
        run = autoclave("--service-wait", "0s", *verb, "--run-dir", tmp_path / "run")
        said = " ".join((run.stdout + run.stderr).split())
        assert f"the service (pid {os.getpid()}) has no socket, because it starts or stops" in said
        assert "if this lasts, read its log" in said
    os.close(lock)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["0", "2"], "0 2"),
        (["0,2", "GPU-3-4"], "0 2 GPU-3-4"),
        (["0,", "2", ",3"], "0 2 3"),
        (["0,2-4", "3", "1:0"], "0 2 3 4 1:0"),
        (["all"], "all"),
        (["0,"], "'0,'"),
        (["3-1"], "'3-1'"),
        (["0-99999999"], "'0-99999999'"),
        (["all", "2"], "'all'"),
    ],
)
def test_gpus_are_named_alike_in_every_verb(words, names):
    @click.command
    @options.needed_gpus
    def verb(gpus: tuple[str, ...]) -> None:
        click.echo("all" if gpus is options.ALL else " ".join(gpus))

    run = CliRunner().invoke(verb, words)
    assert names in run.output
    assert run.exit_code == (2 if "'" in names else 0)


@pytest.mark.parametrize("verb", [scrub.scrub, wait.wait])
def test_the_word_all_is_the_flag(monkeypatch, verb):
    asked: list[object] = []

    def ask(_run_dir, question, *_) -> tuple[list[object], dict[str, object]]:
        asked.append(question)
        return [], {}

    monkeypatch.setattr(service_call, "ask", ask)
    runs = [CliRunner().invoke(verb, words) for words in (["all"], ["--all"], ["all", "--all"], ["0", "--all"])]
    assert len(asked) == 3
    assert "not both" in runs[3].output
