"""Each command line of a page names what is there: programs, verbs, flags, targets of make, files, images.

Part one of the tutorial, the commands of the README and those of the installation without Kubernetes are also run, by
test_tutorial.py and by `make machine`.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from autoclave.cli import cli as root
from deploy import image
from tests.house.sources import PAGES, ROOT, place

BLOCK = re.compile(r"^ *(```|~~~)(\w*)\n(.*?)^ *\1 *$", re.DOTALL | re.MULTILINE)
HEREDOC = re.compile(r"(<<-?'?(\w+)'?\n).*?^ *\2$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
OPERATOR = re.compile(r"[();<>|&]+")
PLACEHOLDER = re.compile(r"[A-Z_]+|\.\.\.|\[.*|\S*\$.*|\S*[A-Z]{2,}\S*")
OURS = tuple(f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and path.name not in {"build", ".git"})
OUR_IMAGE = re.compile(r"(?:localhost|\$REGISTRY|\bREGISTRY|registry\.example\S*)/autoclave:([\w.-]+)")
BUILDERS = ("docker", "podman", "buildah")
VARIABLE = re.compile(r"\w+=")


def simple(text: str) -> Iterator[list[str]]:
    """The commands of a script, each as its words. What is no shell gives none."""
    for line in HEREDOC.sub(r"\1", text).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.strip().removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        try:
            for word in lexer:
                if OPERATOR.fullmatch(word):
                    yield words[:-1] if words and words[-1].isdigit() and word[0] in "<>" else words
                    words = []
                else:
                    words.append(word)
        except ValueError:  # a quotation that goes on, as of JSON: the words before it count
            pass
        yield words


def commands(text: str) -> Iterator[tuple[list[str], bool]]:
    """Each command of a page, and whether it stands in a block, and so is typed as it is."""
    for found in BLOCK.finditer(text):
        if found[2] in {"", "sh"}:
            yield from ((words, True) for words in simple(found[3]))
    for found in INLINE.finditer(BLOCK.sub("", text)):
        yield from ((words, False) for words in simple(" ".join(found[1].split())))


def faults(words: list[str], *, whole: bool) -> Iterator[str]:
    """What a command names that is not there. Placeholders in capitals are passed over."""
    while words and (VARIABLE.match(words[0]) or words[0] in {"$", "sudo", "env"}):
        words = words[1:]
    for word in words if whole else words[1:]:
        named = re.split(r"[=@]", word.strip("`"))[-1]
        path, _, test = named.partition("::")
        ours = path.startswith(OURS) and " " not in path and not PLACEHOLDER.fullmatch(path)
        if ours and not ((ROOT / path).exists() and (not test or f"def {test}(" in (ROOT / path).read_text())):
            yield f"there is no {named}"
    if not words:
        return
    program, *rest = words
    name = program.rpartition("/")[2]
    if "--" in rest and name in {"kubectl", "docker"}:
        yield from faults(rest[rest.index("--") + 1 :], whole=whole)
    elif name == "kubectl" and "autoclave" in rest[:1]:
        yield from _in_a_pod(rest[1:])
    elif name == "autoclave":
        yield from _verb(rest, whole=whole)
    elif name == "make":
        yield from _target(rest)
    elif name in BUILDERS and rest[:1] == ["build"]:
        yield from _build(rest[1:])
    elif name in {"python", "python3"} and rest[:1] == ["-m"] and importlib.util.find_spec(rest[1]) is None:
        yield f"there is no module {rest[1]}"


def _verb(words: list[str], *, whole: bool) -> Iterator[str]:
    command: click.Command = root
    context = click.Context(command, info_name="autoclave")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        if PLACEHOLDER.fullmatch(name):
            return
        found = command.get_command(context, name)
        if found is None:
            yield f"{context.command_path} has no {name}"
            return
        command, context = found, click.Context(found, info_name=name, parent=context)
    try:
        given, more, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        if whole or not isinstance(error, click.BadOptionUsage):  # a sentence names a flag without its value
            yield f"{context.command_path}: {error.format_message()}"
        return
    if more and not isinstance(command, click.Group) and not set(more) <= {"..."}:
        yield f"{context.command_path} takes no {more[0]}"
    for it in command.params:
        value = given.get(it.name or "")
        if isinstance(it, click.Argument) and whole and it.required and not (isinstance(value, str | tuple) and value):
            yield f"{context.command_path} lacks {it.human_readable_name}"
        choices = it.type.choices if isinstance(it.type, click.Choice) and isinstance(value, str) else [value]
        if value not in choices and not PLACEHOLDER.fullmatch(str(value)):
            yield f"{context.command_path}: {value} is none of {', '.join(map(str, choices))}"


def _in_a_pod(words: list[str]) -> Iterator[str]:
    """As the plugin of kubectl takes them: a node and a verb, or the verb and which nodes."""
    line = re.sub(
        r" (?:-A|--all-nodes|(?:-[ln]|--selector|--node|--within|--context) \S+)(?= |$)", "", " ".join(["", *words])
    )
    first, *rest = line.split() or ["NODE"]
    ours = root.get_command(click.Context(root), first) is not None
    yield from _verb([first, *rest] if ours else rest, whole=False)


@cache
def _recipes() -> dict[str, str]:
    """The recipe of each target, by its name."""
    text = (ROOT / "Makefile").read_text()
    variables = dict(re.findall(r"^(\w+) := (\S+)$", text, re.MULTILINE))
    rules = re.findall(r"^(\S+):(?!=).*\n((?:\t.*\n|#.*\n)*)", text, re.MULTILINE)
    return {re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], name): recipe for name, recipe in rules}


def _target(words: list[str]) -> Iterator[str]:
    settings = dict(word.split("=", 1) for word in words if VARIABLE.match(word))
    targets = [word.rstrip(":") for word in words if not VARIABLE.match(word)][
        :1
    ]  # a list of targets says after each what it does
    yield from (f"make has no target {it}" for it in targets if it not in _recipes() and not PLACEHOLDER.fullmatch(it))
    yield from (f"make has no {word}; it belongs into ARGS" for word in words if word.startswith("--"))
    flags = [word.partition("=")[0] for word in shlex.split(settings.get("ARGS", "")) if word.startswith("--")]
    recipe = "".join(_recipes().get(word, "") for word in targets)
    if "pytest" in recipe:
        return
    for module in set(re.findall(r"-m ((?:benchmarks|dashboards|demo|deploy|tests)[\w.]*)", recipe)):
        source = Path(ROOT, *module.split("."))
        text = (source / "__main__.py" if source.is_dir() else source.with_suffix(".py")).read_text()
        yield from (f"{module} has no {flag}" for flag in flags if f'"{flag}"' not in text)


def _build(words: list[str]) -> Iterator[str]:
    """That anybody can build it: each stage begins with nothing, an earlier stage, or an image that a registry has."""
    recipe = (ROOT / words[words.index("-f") + 1]).read_text()
    arguments = dict(re.findall(r"^ARG (\w+)=(\S*)", recipe, re.MULTILINE))
    stages = {"scratch"}
    for base, stage in re.findall(r"^FROM (\S+)(?: AS (\S+))?$", recipe, re.MULTILINE):
        begins = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], base)
        if begins not in stages and not re.search(r"^(?!localhost/)[\w.-]+\.\w+/.*@sha256:[0-9a-f]{64}$", begins):
            yield f"{stage} begins with {begins}, which nobody has"
        stages.add(stage)
    given = [words[at + 1].partition("=")[0] for at, word in enumerate(words) if word == "--build-arg"]
    yield from (f"the recipe has no argument {name}" for name in given if name not in arguments)


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_every_command_of_a_page_names_what_is_there(page):
    text = page.read_text()
    found = [f"{' '.join(words)}: {it}" for words, whole in commands(text) for it in faults(words, whole=whole)]
    tags = {image.tag_of(build).removeprefix(":") for build in image.BUILDS}
    found += [
        f"no build has the tag {tag}" for tag in OUR_IMAGE.findall(text) if tag not in tags and "VERSION" not in tag
    ]
    assert found == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("autoclave statsu", "autoclave has no statsu"),
        ("autoclave status --wide", "No such option"),
        ("autoclave status -o xml", "xml is none of"),
        ("autoclave doctor 0", "autoclave doctor takes no 0"),
        ("autoclave explain", "autoclave explain lacks GPU"),
        ("kubectl exec POD -- autoclave statsu", "autoclave has no statsu"),
        ("kubectl autoclave NODE ledger verfy", "autoclave ledger has no verfy"),
        ("A=b make imagine", "make has no target imagine"),
        ("make release --tag v1", "make has no --tag"),
        ("make image ARGS='--bass x'", "deploy.image has no --bass"),
        ("x | python -m deploy.nothing", "there is no module deploy.nothing"),
        ("kubectl apply -f deploy/examples/nothing.yaml", "there is no deploy/examples/nothing.yaml"),
        ("docker build -f deploy/Dockerfile --build-arg CUDDA=none .", "the recipe has no argument CUDDA"),
    ],
)
def test_a_command_that_names_nothing_is_seen(command, said):
    page = f"```\n{command}\n```\n"
    assert said in "\n".join(it for words, whole in commands(page) for it in faults(words, whole=whole))
