"""The command and the script in the documentation give the same verdict on any receipt, key and checkpoint."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from autoclave import cli
from autoclave.cli import DONE, verified_receipts
from autoclave.cli.output.statement_words import CLOSINGS, RECEIPTS, Kind
from ground.errors import FatalError
from scrubber.receipts import dsse, key, note
from scrubber.receipts.note import Checkpoint
from scrubber.receipts.tenant_files import ENVELOPE, PROOF
from tests.receipts.vectors import FOLDER, HANDOVER, NODE, OLDER, ORIGIN, OTHER, receipts_script

KEY, SECOND, CHECKPOINT = "key", "second", "checkpoint"
RIGHT = {name: (FOLDER / "right" / name).read_text() for name in (ENVELOPE, PROOF)}
SAME = (FOLDER / "same-checkpoint" / "checkpoint").read_text()
HELD = [path.read_text() for path in sorted(FOLDER.glob("*/checkpoint"))]
KEYS = [
    key.public_pem(NODE.public_key), key.vkey(NODE.public_key, ORIGIN), base64.b64encode(NODE.public_key).decode(),
    base64.b64encode(key.PUBLIC + NODE.public_key).decode(), key.public_pem(OTHER.public_key),
    key._pem("CERTIFICATE", key.PUBLIC + NODE.public_key), key._pem("PUBLIC KEY", NODE.public_key),
]  # fmt: skip
ROUNDS = 800

Alter = Callable[[random.Random, str], str]


class Verifiers:
    """Both verifiers, each with the same files."""

    def __init__(self, folder: Path, script: ModuleType) -> None:
        self.folder = folder
        self._script = script
        (folder / HANDOVER).mkdir()

    def path(self, name: str) -> Path:
        return self.folder / name if name in (KEY, SECOND, CHECKPOINT) else self.folder / HANDOVER / name

    def verdicts(self, files: dict[str, bytes]) -> tuple[bool, bool]:
        """Whether the command and the script accept. Anything but a yes, or a refusal in words, is an error here."""
        for name, content in files.items():
            self.path(name).write_bytes(content)
        return self.both(self.folder / HANDOVER, held=CHECKPOINT in files)

    def both(self, folder: Path, *, held: bool = False, kind: Kind = RECEIPTS) -> tuple[bool, bool]:
        given = (self.path(CHECKPOINT),) if held else ()
        keys = tuple(path for path in map(self.path, (KEY, SECOND)) if path.exists())
        try:
            done = verified_receipts.verify(folder, (keys, (), given), ("", "", ""), "text", kind) == DONE
        except FatalError:
            done = False
        flags = [str(folder), *(f"--key={each}" for each in keys), *(f"--checkpoint={each}" for each in given)]
        flags += ["--closing"] if kind is CLOSINGS else []
        return done, self.refusal(flags) is None

    def refusal(self, flags: list[str]) -> str | None:
        """Why the script refuses; None: it accepts."""
        try:
            self._script.main(flags)
        except SystemExit as ended:
            sys.stderr.write(f"{ended.code}\n")
            return str(ended.code) if ended.code else None
        return None


@pytest.fixture
def verifiers(tmp_path: Path) -> Verifiers:
    both = Verifiers(tmp_path, receipts_script())
    assert both.verdicts({name: text.encode() for name, text in (RIGHT | {KEY: KEYS[0]}).items()}) == (True, True)
    return both


# -- what is altered


def _anywhere(dice: random.Random, text: str) -> str:
    place = dice.randrange(len(text) + 1)
    odd = dice.choice(
        ["", "\n", "\r", " ", "+", "-", "=", "A", "0", "_", "\u2028", "\x85", "\x0b", "\u0663", "\ufeff", '"']
    )
    return text[:place] + odd + text[place + dice.randrange(2) :]


def _line(dice: random.Random, text: str) -> str:
    lines = text.split("\n")
    place = dice.randrange(len(lines))
    line = lines[place]
    lines[place : place + 1] = dice.choice([[line, line], [], [line, ""], [f" {line}"], [f"{line} "], [line + "\r"]])
    return "\n".join(lines)


def _ends(dice: random.Random, text: str) -> str:
    return dice.choice(
        [text.replace("\n", "\r\n"), text + "\n", text.removesuffix("\n"), f"\n{text}", text.replace("\n", "\u2028")]
    )


def _number(dice: random.Random, text: str) -> str:
    """Another form of the index, of the size, or of the word before it."""
    old = dice.choice(["index 5", "\n11\n"])
    number = old.strip().removeprefix("index ")
    form = dice.choice(["0{}", "+{}", " {}", "{} ", "{}.0", "{}_0", "-{}", "\u0665", "{}", "9" * 20])
    return text.replace(old, old.replace(number, form.format(number)).replace("index ", dice.choice(["", "index "])), 1)


def _base64(dice: random.Random, text: str) -> str:
    """Another alphabet, another padding, or letters that mean nothing."""
    return dice.choice(
        [
            text.replace("+", "-").replace("/", "_"), text.replace("=", ""), text.replace("=", "=="),
            text.replace("=\n", "\n", 1), text.replace('"payload":"', '"payload":" '), text.replace('="', '=\\n"'),
        ]
    )  # fmt: skip


def _signatures(dice: random.Random, text: str) -> str:
    """More signature lines below the checkpoint: of others, of nobody, of the same key, or in no form."""
    body = text[max(0, text.find(ORIGIN)) :].rpartition("\n\n")[0]
    by = [key.note_id(ORIGIN, NODE.public_key), key.note_id(ORIGIN, OTHER.public_key)]
    right = by[0] + NODE.sign(f"{body}\n".encode())
    name = dice.choice([ORIGIN, ORIGIN, "another", "a+b", ""])
    signature = base64.b64encode(dice.choice([right, by[0] + bytes(64), by[1] + bytes(64), by[0], b"x"])).decode()
    line = dice.choice(
        [f"\u2014 {name} {signature}", f"- {name} {signature}", "\u2014 x", "x", "", f"\u2014 {name} ==="]
    )
    before, separated, after = text.rpartition("\n\n")
    return before + separated + dice.choice([f"{line}\n{after}", f"{after}{line}\n", f"{after}{line}"])


def _json(dice: random.Random, _text: str) -> str:
    """The envelope in another form, with more signatures, or around another statement."""
    text = RIGHT[ENVELOPE]
    document = json.loads(text)
    kind, said, signature = document["payloadType"], base64.b64decode(document["payload"]), document["signatures"][0]
    more = dice.choice([{"sig": "AA=="}, {"sig": "A"}, {"keyid": 5, **signature}, {}, 7, None, {"sig": None}])
    return dice.choice(
        [
            json.dumps(document, indent=1), json.dumps(document | {"signatures": [signature, more]}),
            json.dumps(document | {"signatures": [more, signature]}), json.dumps(document | {"signatures": signature}),
            json.dumps(document | {"payloadType": [kind]}), json.dumps([document]), text[:-1] + ',"payload":"e30="}',
            dsse.envelope(said, OTHER, NODE), dsse.envelope(said, OTHER), dsse.envelope(b"[]", NODE), "[" * 99_999,
            dsse.envelope(said.replace(b'"hand-over"', b'"receipt"'), NODE), dsse.envelope(b"[" * 99_999, NODE),
            dsse.envelope(said.replace(b"sha256", b"sha512"), NODE), dsse.envelope(b'{"_type":1}', NODE),
        ]
    )  # fmt: skip


def _log(dice: random.Random, text: str) -> str:
    """Lines of the service's log."""
    lines = [json.dumps({"checkpoint": each}, ensure_ascii=dice.random() < 0.5) for each in dice.sample(HELD, 2)]
    lines += ["{", "no JSON", '{"checkpoint": 1}', "[{}]", "{" * 9, json.dumps({"checkpoint": text}), '{"x":' * 99_999]
    return dice.choice(["\n", "\r\n", "\n\n"]).join(dice.sample(lines, dice.randint(1, 3)))


ALL = [_anywhere, _line, _ends, _base64]
ALTERATIONS: dict[str, list[Alter]] = {
    ENVELOPE: [*ALL, _json, _json],
    PROOF: [*ALL, _number, _signatures, _signatures],
    KEY: [*ALL],
    CHECKPOINT: [*ALL, _number, _signatures, _log, _log],
}


@pytest.mark.parametrize("part", list(ALTERATIONS))
def test_both_verifiers_give_the_same_verdict(verifiers: Verifiers, part: str) -> None:
    dice = random.Random(part)  # noqa: S311 - the same each time
    count = {True: 0, False: 0}
    for _ in range(ROUNDS // len(ALTERATIONS)):
        texts = RIGHT | {KEY: dice.choice(KEYS[:3])}
        if part == KEY:
            texts[KEY] = dice.choice(KEYS)
        verifiers.path(SECOND).unlink(missing_ok=True)
        if dice.random() < 0.3:
            texts[SECOND] = dice.choice((KEYS[0], KEYS[4]))
        if part == CHECKPOINT:
            texts[CHECKPOINT] = dice.choice(HELD)
        for _ in range(dice.randint(0 if part == KEY else 1, 2)):
            texts[part] = dice.choice(ALTERATIONS[part])(dice, texts[part])
        encoding = "utf-16" if dice.random() < 0.02 else "utf-8-sig" if dice.random() < 0.02 else "utf-8"
        files = {name: text.encode(encoding if name == part else "utf-8") for name, text in texts.items()}
        command, script = verifiers.verdicts(files)
        assert command is script, f"the command says {command}, the script {script}, of {part}: {files[part]!r}"
        count[command] += 1
    assert min(count.values()) > 5  # it tries both


# -- closing receipts

SAID = {name: (FOLDER / "closing" / name).read_text() for name in CLOSINGS.files}
FORGED = 500


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    """The places of all numbers, words and flags."""
    if isinstance(value, dict | list):
        for key_of, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(each, (*path, key_of))
    else:
        yield path


def _lied(dice: random.Random, payload: bytes) -> bytes:
    """The statement of the closing receipt, with another number or word, or without one, or with one more."""
    said = json.loads(payload)
    *above, last = dice.choice([*_leaves(said)])
    inner = said
    for each in above:
        inner = inner[each]
    how = dice.randrange(3)
    if how == 0:
        inner[last] = dice.choice([0, 1, 10**6, "hold", "none", "", None, True, {}, inner[last] * 2])
    elif how == 1:
        del inner[last]
    else:
        said["predicate"][dice.choice(["fence", "untilWiped", "tenant", "note"])] = dice.choice([{}, 0, ""])
    lie = json.dumps(said, separators=(",", ":")).encode()
    return lie if lie != payload else _lied(dice, payload)


def _forged(dice: random.Random) -> str:
    """A lie, with a signature of another key, of another document or type, or of nobody."""
    true = json.loads(SAID[CLOSINGS.files[0]])
    lie = _lied(dice, base64.b64decode(true["payload"]))
    stolen = [true["signatures"][0]["sig"], json.loads(RIGHT[ENVELOPE])["signatures"][0]["sig"], "", "A" * 86 + "=="]
    stolen.append(base64.b64encode(NODE.sign(lie)).decode())  # of the payload without its type
    signatures = [{"keyid": NODE.key_id, "sig": dice.choice(stolen)} for _ in range(dice.randint(1, 2))]
    return dice.choice(
        [
            json.dumps(true | {"payload": base64.b64encode(lie).decode(), "signatures": signatures}),
            dsse.envelope(lie, OTHER), dsse.envelope(lie, NODE, payload_type="text/plain"), RIGHT[ENVELOPE],
            json.dumps(true | {"payloadType": "text/plain"}), json.dumps(true | {"signatures": []}),
        ]
    )  # fmt: skip


def test_no_forged_closing_receipt_passes(verifiers: Verifiers) -> None:
    for name, text in SAID.items():
        verifiers.path(name).write_text(text)
    assert verifiers.both(verifiers.folder / HANDOVER, kind=CLOSINGS) == (True, True)
    dice = random.Random("closing")  # noqa: S311 - the same each time
    for _ in range(FORGED):
        forged = _forged(dice)
        verifiers.path(CLOSINGS.files[0]).write_text(forged)
        alone = dice.random() < 0.5  # without the log
        folder = verifiers.path(CLOSINGS.files[0]) if alone else verifiers.folder / HANDOVER
        assert verifiers.both(folder, kind=CLOSINGS) == (False, False), forged


# -- what is in the place of a file


def _refused_by_both(verifiers: Verifiers, folder: Path, capfd: pytest.CaptureFixture[str], why: str) -> None:
    capfd.readouterr()
    assert verifiers.both(folder) == (False, False)
    said = capfd.readouterr()
    lines = said.err.splitlines()
    assert said.out == ""
    assert (len(lines), [why in line for line in lines]) == (2, [True, True])


def test_a_directory_has_the_id_of_its_own_name(verifiers: Verifiers, capfd) -> None:
    """A directory of today whose files, or which itself, lead to the receipt of yesterday."""
    today, link = verifiers.folder / OLDER, verifiers.folder / "0123456789abcdef01234567"
    today.mkdir()
    for name in RIGHT:
        (today / name).symlink_to(verifiers.path(name))
    link.symlink_to(verifiers.folder / HANDOVER)
    for folder in (today, link):
        _refused_by_both(verifiers, folder, capfd, folder.name)
    copy = verifiers.folder / "copy"
    (verifiers.folder / HANDOVER).rename(copy)
    _refused_by_both(verifiers, copy, capfd, "--handover")


@pytest.mark.parametrize("name", list(RIGHT))
def test_what_is_no_regular_file_is_not_read(verifiers: Verifiers, capfd, name: str) -> None:
    place = verifiers.path(name)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir()):
        place.unlink()
        make(place)
        _refused_by_both(verifiers, place.parent, capfd, "not a regular file")
        if place.is_dir():
            break
    place.rmdir()
    with place.open("wb") as file:
        file.truncate(2**40)
    _refused_by_both(verifiers, place.parent, capfd, "more than 1048576 bytes")


def test_a_key_that_is_malformed_is_wrong_usage(verifiers: Verifiers, capfd) -> None:
    verifiers.path(KEY).write_text("?")
    assert verifiers.refusal([f"--key={verifiers.path(KEY)}", str(verifiers.folder / HANDOVER)]) == "2"
    assert "error: key: it is malformed" in capfd.readouterr().err


def test_a_key_without_an_end_is_refused_in_words(verifiers: Verifiers, capfd) -> None:
    verifiers.path(KEY).unlink()
    verifiers.path(KEY).symlink_to("/dev/zero")
    assert verifiers.both(verifiers.folder / HANDOVER) == (False, False)
    assert "has more than 67108864 bytes" in capfd.readouterr().err


def test_no_verifier_prints_what_a_terminal_obeys(verifiers: Verifiers, capfd) -> None:
    """The name of a log counts only when it is signed."""
    raw = "\x1b[2J\x9b31m\u202e"
    proof = RIGHT[PROOF].replace(f"\n\n{ORIGIN}\n", f"\n\n{raw}\n").replace(f"\u2014 {ORIGIN} ", f"\u2014 {raw} ")
    verifiers.path(PROOF).write_text(proof)
    _refused_by_both(verifiers, verifiers.folder / HANDOVER, capfd, r"\x1b[2J\x9b31m\u202e")


@pytest.mark.parametrize("flag", ["--gpu=", "--boot=", "--handover="])
def test_an_empty_flag_is_not_taken_for_no_flag(verifiers: Verifiers, flag: str) -> None:
    """As of a variable that is not set."""
    command = [f"--key={verifiers.path(KEY)}", str(verifiers.folder / HANDOVER), flag]
    run = CliRunner().invoke(cli.cli, ["receipt", "verify", *command])
    assert (run.exit_code, "it is empty" in run.stderr) == (2, True)
    assert "not verified: " in (verifiers.refusal(command) or "")


# -- what people and their tools make of the files


@pytest.mark.parametrize("name", [ENVELOPE, PROOF, CHECKPOINT])
def test_an_end_of_line_more_breaks_no_signature(verifiers: Verifiers, name: str) -> None:
    """As `jq -r` prints it."""
    texts = {name: text.encode() for name, text in (RIGHT | {CHECKPOINT: SAME}).items()}
    assert verifiers.verdicts(texts) == (True, True)
    assert verifiers.verdicts(texts | {name: texts[name] + b"\n"}) == (True, True)


def test_the_line_that_fits_is_taken_from_many_nodes(verifiers: Verifiers) -> None:
    """A log store has lines of all nodes, by keys of before, and of other programs."""
    foreign = note.sign(Checkpoint("autoclave/other", 11, bytes(32)), OTHER)
    earlier = note.sign(Checkpoint(ORIGIN, 11, bytes(32)), OTHER)
    lines = [json.dumps({"checkpoint": each}) for each in (foreign, earlier, SAME)]
    lines += ["{ of another program", "no JSON", '{"checkpoint": 1}', "{}", '{"x":' * 50_000]
    assert verifiers.verdicts({CHECKPOINT: "\n".join(lines).encode()}) == (True, True)
    assert verifiers.verdicts({CHECKPOINT: "\n".join([*lines[:2], *lines[3:]]).encode()}) == (False, False)
    forked = json.dumps({"checkpoint": note.sign(Checkpoint(ORIGIN, 11, bytes(32)), NODE)})
    assert verifiers.verdicts({CHECKPOINT: "\n".join([*lines, forked]).encode()}) == (False, False)


def test_one_file_is_enough(verifiers: Verifiers, capfd) -> None:
    alone = verifiers.folder / "mail.json"
    alone.write_text(RIGHT[ENVELOPE])
    assert verifiers.both(alone) == (True, True)
    said = capfd.readouterr().out
    assert "not checked: there is no receipt.tlog-proof beside it" in said
    assert "for hand-over (not given), without receipt.tlog-proof: the log is not checked" in said
    older = verifiers.folder / OLDER
    older.mkdir()
    (older / ENVELOPE).write_text(RIGHT[ENVELOPE])
    assert verifiers.both(older / ENVELOPE) == (False, False)
    assert verifiers.both(verifiers.path(ENVELOPE)) == (True, True)


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [
        (ENVELOPE, "{}", "payloadType"),
        (ENVELOPE, "{", ENVELOPE),
        (ENVELOPE, json.dumps(json.loads(RIGHT[ENVELOPE]) | {"payload": "?"}), ENVELOPE),
        (ENVELOPE, json.dumps(json.loads(RIGHT[ENVELOPE]) | {"signatures": [{}]}), "sig"),
        (ENVELOPE, dsse.envelope(b'{"_type": 1}', NODE), "predicateType"),
        (ENVELOPE, "[" * 99_999, ENVELOPE),
        (PROOF, RIGHT[PROOF].replace("index", "extra"), "proof"),
        (PROOF, RIGHT[PROOF].replace("extra ", "extra ?"), PROOF),
        (CHECKPOINT, "{}", "checkpoint"),
    ],
)
def test_malformed_input_names_the_field(verifiers: Verifiers, name: str, content: str, field: str) -> None:
    """And no name of Python."""
    verifiers.path(name).write_text(content)
    held = [f"--checkpoint={verifiers.path(CHECKPOINT)}"] if name == CHECKPOINT else []
    why = verifiers.refusal([f"--key={verifiers.path(KEY)}", *held, str(verifiers.folder / HANDOVER)]) or ""
    assert why.startswith(f"not verified: {field}: it is ")
    command = CliRunner().invoke(cli.cli, ["receipt", "verify", f"--key={verifiers.path(KEY)}", *held,
                                           str(verifiers.folder / HANDOVER)])  # fmt: skip
    assert not re.search(r"\w+Error", why + command.stderr), command.stderr
