"""``autoclave receipt``: verified by files alone, shown from the service or its ledger, and the key."""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from autoclave.cli import SIMULATED, service_call, verified_receipts
from ground import paths
from scrub_api.measurements import PATTERN_LEFT, UNSEARCHED
from scrubber.ledger import ledger_rows
from scrubber.receipts import dsse, key, note, tenant_files
from tests.receipts import vectors
from tests.receipts.vectors import BOOT, FOLDER, GPU, HANDOVER, NODE, OTHER, SCRIPT, SITE


@pytest.fixture
def files(tmp_path):
    """A receipt as a container sees it, and keys."""
    shutil.copytree(FOLDER / "right", tmp_path / HANDOVER)
    for signer in (NODE, OTHER, SITE):
        (tmp_path / f"{signer.word}.pem").write_text(key.public_pem(signer.public_key))
    (tmp_path / "checkpoint").write_text((FOLDER / "same-checkpoint" / "checkpoint").read_text())
    return tmp_path


@pytest.fixture
def verify(autoclave, files):
    """Verify the receipt with these flags."""

    def run(*flags, path=HANDOVER, trusted="node.pem") -> Result:
        result: Result = autoclave("receipt", "verify", files / path, "--key", files / trusted, *flags)
        return result

    return run


def test_what_was_checked_is_said_and_what_was_not(verify):
    run = verify()
    assert run.exit_code == 0
    lines = [re.sub(" +", " ", line) for line in run.stdout.splitlines()]
    assert lines[:7] == [
        "verified",
        f"signature by {NODE.key_id}",
        f"gpu {GPU} (not compared: --gpu)",
        f"boot {BOOT} (not compared: --boot)",
        f"hand-over {HANDOVER}",
        "log row 6 of 11 of autoclave/gpu-1",
        "checkpoint not compared with one of the same size: --checkpoint",
    ]
    assert "claim Clear (NIST SP 800-88r2) of 85000000000 of 85500000000 bytes, verification full" in "\n".join(lines)


def test_both_verifiers_say_which_pattern_was_left(verify, files):
    place = files / HANDOVER
    script = [sys.executable, "-I", vectors.SCRIPT, place, f"--key={files / 'node.pem'}"]
    assert b"left as zero\n" in subprocess.run(script, capture_output=True, check=True).stdout
    assert "\nleft " not in verify().stdout
    said = vectors.statement_of(replace(vectors.receipt(), patterns=("random",)))
    envelope = dsse.envelope(said, NODE)
    (place / "receipt.dsse.json").write_text(envelope)
    (place / "receipt.tlog-proof").write_text(vectors.Log(envelope).proof())
    assert b"left as random\n" in subprocess.run(script, capture_output=True, check=True).stdout
    assert f"\nleft        random: {PATTERN_LEFT}\n" in verify().stdout


@pytest.mark.parametrize(("left", "words"), [(("caches", "tensor memory"), "caches, tensor memory"), ((), "not said")])
def test_both_verifiers_say_what_stayed_on_the_chip(verify, files, left, words):
    place = files / HANDOVER
    said = vectors.statement_of(replace(vectors.receipt(), units=148, units_reached=148, units_left=left))
    envelope = dsse.envelope(said, NODE)
    (place / "receipt.dsse.json").write_text(envelope)
    (place / "receipt.tlog-proof").write_text(vectors.Log(envelope).proof())
    script = [sys.executable, "-I", vectors.SCRIPT, place, f"--key={files / 'node.pem'}"]
    line = f"shared memory and registers of 148 of 148 units overwritten; not overwritten: {words}\n"
    assert line in verify().stdout
    assert line in subprocess.run(script, capture_output=True, check=True, text=True).stdout


def test_with_every_value_given_nothing_is_left_unchecked(verify, files):
    run = verify("--gpu", GPU, "--boot", BOOT, "--handover", HANDOVER, "--checkpoint", files / "checkpoint")
    assert run.exit_code == 0
    assert "not compared" not in run.stdout
    assert "the same was held elsewhere" in run.stdout
    log = {"event": "checkpoint", "checkpoint": (files / "checkpoint").read_text()}
    (files / "log").write_text(f"2026-11-25 {json.dumps(log)}\n")
    assert "the same was held elsewhere" in verify("--checkpoint", files / "log").stdout
    older = verify(
        "--checkpoint", FOLDER / "older-checkpoint-with-the-receipt" / "checkpoint", "--key", files / "other.pem"
    )
    assert f"by one of {NODE.key_id}, {OTHER.key_id}" in older.stdout
    assert "yours has another size" in older.stdout


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--gpu", "GPU-other"], "GPU-other"),
        (["--boot", "other"], "of boot"),
        (["--handover", "0" * 24], "0" * 24),
        (["--checkpoint", FOLDER / "two-histories" / "checkpoint"], "two histories"),
        (["--checkpoint", FOLDER / "checkpoint-before-the-receipt" / "checkpoint"], "before the receipt"),
    ],
)
def test_a_wrong_field_is_named_with_exit_code_1(verify, flags, why):
    run = verify(*flags)
    assert (run.exit_code, run.stdout) == (1, "")
    assert why in run.stderr
    document = json.loads(verify(*flags, "-o", "json").stdout)
    assert document["verified"] is False
    assert why in document["why"]


def test_an_older_handover_is_found_by_its_directory(verify, files):
    (files / HANDOVER).rename(files / ("0" * 24))
    assert "the hand-over is" in verify(path="0" * 24).stderr


def test_a_container_without_a_proof_has_no_whole_receipt(verify, files):
    (files / HANDOVER / "receipt.tlog-proof").unlink()
    run = verify()
    assert run.exit_code == 1
    assert "receipt.tlog-proof cannot be read: No such file" in run.stderr
    alone = verify(path=f"{HANDOVER}/receipt.dsse.json")
    assert alone.exit_code == 0
    assert "log         not checked" in alone.stdout


def test_a_file_that_is_no_log_is_wrong_usage(verify, files):
    (files / "log").write_text("{}\n")
    run = verify("--checkpoint", files / "log")
    assert run.exit_code == 2
    assert f"cannot use the checkpoint in {files / 'log'}: no line of the log has a checkpoint" in run.stderr


def test_json_has_the_statement_and_what_was_compared(verify):
    document = json.loads(verify("--gpu", GPU, "-o", "json").stdout)
    assert (document["kind"], document["verified"]) == ("ReceiptVerification", True)
    assert [document[f"{name}_compared"] for name in ("gpu", "boot", "handover")] == [True, False, True]
    assert document["log"] == {"origin": "autoclave/gpu-1", "row": 6, "rows": 11, "compared": False}
    assert document["statement"]["predicate"]["device"]["uuid"] == GPU


def test_a_key_counts_once_the_site_vouches_for_it(verify, files):
    (files / "node.json").write_text(dsse.endorse(NODE.public_key, SITE))
    assert verify("--site-key", files / "site.pem", trusted="node.json").exit_code == 0
    alone, foreign = verify(trusted="node.json"), verify("--site-key", files / "other.pem", trusted="node.json")
    assert "name the key of the site with --site-key" in alone.stderr
    assert "signature is wrong" in foreign.stderr
    (files / "node.json").write_text(dsse.endorse(OTHER.public_key, SITE))
    wrong = verify("--site-key", files / "site.pem", trusted="node.json")
    assert [run.exit_code for run in (alone, foreign, wrong)] == [2, 2, 1]


@pytest.fixture
def in_container(files, monkeypatch):
    """Verify as a container does that has these GPUs: with nothing but the key."""

    def run(autoclave, *flags, gpus=1, boot=BOOT, trusted="node.pem", **more) -> Result:
        (files / "dev").mkdir()
        for index in range(gpus):
            (files / "dev" / f"nvidia{index}").touch()
        for name in ("nvidiactl", "nvidia-uvm"):
            (files / "dev" / name).touch()
        (files / "receipts").mkdir()
        shutil.move(files / HANDOVER, files / "receipts")
        monkeypatch.setattr(verified_receipts, "DEV", files / "dev")
        monkeypatch.setattr(verified_receipts, "boot_id", lambda: boot)
        monkeypatch.setenv("AUTOCLAVE_RECEIPTS", str(files / "receipts"))
        for change in more.get("changes", ()):
            change(files / "receipts")
        result: Result = autoclave("receipt", "verify", "--key", files / trusted, *flags)
        return result

    return run


def test_a_container_needs_only_the_key(autoclave, in_container):
    run = in_container(autoclave)
    assert run.exit_code == 0
    assert "(not compared: --gpu)" in run.stdout
    assert "not compared: --boot" not in run.stdout
    assert "not compared: --handover" not in run.stdout


def empty(receipts):
    for file in (receipts / HANDOVER).iterdir():
        file.unlink()


def rename(receipts):
    (receipts / HANDOVER).rename(receipts / ("0" * 24))


def second(receipts):
    (receipts / ("f" * 24)).mkdir()


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"trusted": "other.pem"}, "signature is wrong"),
        ({"changes": [empty]}, "receipt.dsse.json cannot be read: No such file"),
        ({"changes": [rename]}, "the hand-over is"),
        ({"boot": "other"}, "the boot is"),
        ({"gpus": 2}, "has 1 hand-over, and the container 2 GPUs"),
        ({"gpus": 2, "changes": [second]}, f"{'f' * 24}/receipt.dsse.json cannot be read"),
        (
            {"changes": [lambda receipts: shutil.rmtree(receipts / HANDOVER)]},
            "has 0 hand-overs, and the container 1 GPU",
        ),
        ({"gpus": 0, "changes": [lambda receipts: shutil.rmtree(receipts / HANDOVER)]}, "has 0 hand-overs"),
        ({"changes": [shutil.rmtree]}, "receipts cannot be read: No such file"),
    ],
)
def test_a_gpu_of_the_container_without_proof_is_exit_1(autoclave, in_container, case, why):
    run = in_container(autoclave, **case)
    assert run.exit_code == 1
    assert why in run.stderr


def test_a_container_without_the_variable_has_no_proof(autoclave, files):
    run = autoclave("receipt", "verify", "--key", files / "node.pem", "-o", "json")
    assert run.exit_code == 1
    assert "AUTOCLAVE_RECEIPTS is not set" in run.stderr
    assert json.loads(run.stdout)["verified"] is False


def test_a_key_may_come_through_a_pipe(files):
    """As in a pod that has the keys of all nodes in a variable."""
    command = (
        f'printf "%s\\n" "$KEY" | {sys.executable} -m autoclave receipt verify {files / HANDOVER} --key /dev/stdin'
    )
    env = os.environ | {"KEY": (files / "node.pem").read_text()}
    run = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_openssl_makes_the_endorsement_of_the_page(verify, files):
    """The commands of the page, run as they stand there."""
    if shutil.which("openssl") is None:
        pytest.skip("OpenSSL is not installed")
    page = (FOLDER.parent / "README.md").read_text()
    [commands] = re.findall(r"```sh\n(openssl genpkey.*?)```", page, re.DOTALL)
    nodes = key.public_key_of((files / "node.pem").read_text()), OTHER.public_key
    lines = [key.vkey(public, f"autoclave/gpu-{n}") for n, public in enumerate(nodes)]
    (files / "keys").write_text("".join(f"{line}\n" for line in lines))
    run = subprocess.run(["sh", "-euc", commands], cwd=files, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert verify("--site-key", files / "site.pem", trusted="gpu-0.json").exit_code == 0
    assert verify("--site-key", files / "site.pem", trusted="gpu-1.json").exit_code == 1


# -- of a service


def test_a_receipt_of_the_service_is_shown_and_verifies(service, autoclave, gpu, tmp_path):
    shown = json.loads(autoclave("receipt", "show", gpu, "-o", "json").stdout)
    receipt = service.settled(gpu, "clean").receipt
    assert receipt is not None
    assert (shown["id"], shown["signed_by"]) == (receipt.id, [receipt.signed_by])
    assert json.loads(base64.b64decode(json.loads(shown["envelope"])["payload"])) == shown["statement"]
    (tmp_path / "receipt.json").write_text(shown["envelope"])
    pem = autoclave("receipt", "key", "--state-dir", service.root / "state").stdout
    (tmp_path / "node.pem").write_text(pem)
    flags = ["--key", tmp_path / "node.pem", "--gpu", service.settled(gpu, "clean").device]
    verified = autoclave("receipt", "verify", tmp_path / "receipt.json", *flags)
    assert (verified.exit_code, verified.stdout.splitlines()[0]) == (SIMULATED, "verified")
    by_id = autoclave("receipt", "show", receipt.id)
    assert by_id.stdout.splitlines()[-1] == shown["envelope"]
    assert f"receipt     {receipt.id}" in by_id.stdout
    assert f" on {socket.gethostname()}, policy " in by_id.stdout


def test_a_clear_that_did_not_end_leaves_the_residue_unknown(service, autoclave, gpu):
    for command in (("stall-clears",), ("occupy", "--secret", "hush"), ("release",)):
        assert autoclave("simulate", command[0], gpu, *command[1:]).exit_code == 0
        if command[0] == "occupy":
            service.settled(gpu, "dirty")
    while (job := service.settled(gpu, "scrubbing").job) is None or job.step != "clear":
        pass
    assert autoclave("quarantine", gpu, "--reason", "test").exit_code == 0
    for again in (("simulate", "heal"), ("reinstate",)):
        assert autoclave(*again, gpu).exit_code == 0
    shown = autoclave("receipt", "show", gpu).stdout
    assert f"found       {UNSEARCHED}; 0 proc" in shown
    found = json.loads(autoclave("receipt", "show", gpu, "-o", "json").stdout)["statement"]["predicate"]["found"]
    assert (found["residueBytes"], found["searchedBytes"]) == (0, 0)
    assert "may be the pattern" in autoclave("history", gpu, "--steps").stdout


def test_a_receipt_is_shown_without_a_service(service, autoclave, gpu, tmp_path):
    receipt = service.settled(gpu, "clean").receipt
    assert receipt is not None
    state = service.root / "state"
    run = autoclave("--service-wait", "0s", "receipt", "show", receipt.id, "--run-dir", tmp_path, "--state-dir", state)
    assert run.exit_code == 0
    assert receipt.id in run.stdout
    assert "this is what its ledger" in run.stderr


def test_a_past_receipt_is_exported_for_others_to_verify(service, autoclave, gpu, tmp_path):
    """Of a hand-over that has ended; and of the present one, by its GPU."""
    device = service.settled(gpu, "clean")
    past, state = device.receipt.id, ["--state-dir", service.root / "state"]
    pem = tmp_path / "node.pem"
    pem.write_text(autoclave("receipt", "key", *state).stdout)
    for verb in ("acquire", "release"):
        assert autoclave(verb, gpu).exit_code == 0
    newest = service.settled(gpu, "clean").receipt.id
    assert newest != past
    for name, receipt in ((past, past), (gpu, newest)):
        run = autoclave("receipt", "export", name, tmp_path / "out", *state)
        assert (run.exit_code, run.stderr) == (0, "")
        folder = Path(run.stdout.strip())
        assert sorted(path.name for path in folder.iterdir()) == ["receipt.dsse.json", "receipt.tlog-proof"]
        flags = [folder, "--key", pem, "--gpu", device.device]
        verified = autoclave("receipt", "verify", *flags)
        assert verified.exit_code == SIMULATED
        assert f"receipt     {receipt} of" in verified.stdout
        assert f" of autoclave/{socket.gethostname()}\n" in verified.stdout
        script = subprocess.run([sys.executable, SCRIPT, *flags], capture_output=True, text=True, check=False)
        assert (script.returncode, script.stdout.startswith("verified: ")) == (SIMULATED, True)
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_a_handover_writes_as_many_rows_as_the_page_says(own_service, autoclave):
    """Operators size the evidence, and the disk for the tree, by that."""

    def rows() -> tuple[int, int]:
        history = service_call.ask(own_service.run_dir, lambda admin: admin.history(limit=10_000))
        kinds = [row.kind for row in history]
        return len(kinds), sum(kind not in ledger_rows.STEPS for kind in kinds)

    own_service.settled(0, "clean")
    before = rows()
    for verb in ("acquire", "release"):
        assert autoclave(verb, "0", "--run-dir", own_service.run_dir).exit_code == 0
    own_service.settled(0, "clean")
    every, evidence = (after - then for after, then in zip(rows(), before, strict=True))
    page = " ".join((FOLDER.parents[1] / "ledger.md").read_text().split())
    assert f"`autoclave acquire` writes {every} rows, of which {evidence} are evidence" in page
    assert f"{1152 * 365 * every / 1e6:.1f} million rows a year" in page


def test_a_handover_from_before_an_older_copy_is_found(own_service, autoclave, tmp_path, monkeypatch):
    """Then its device counts its hand-overs from another number on."""
    monkeypatch.setattr(tenant_files, "EARLIER", 5)
    state = ["--state-dir", own_service.root / "state"]
    past = own_service.settled(0, "clean").receipt.id
    given = autoclave("receipt", "export", past, tmp_path / "before", *state).stdout.strip()
    for verb in ("acquire", "release"):
        assert autoclave(verb, 0).exit_code == 0
    wipe = own_service.settled(0, "clean").receipt.id
    own_service.stop()
    paths.ledger_head(own_service.run_dir).unlink()
    own_service.start()
    assert "an older copy" in "".join(own_service.log_lines)
    newest = own_service.settled(0, "clean").receipt.id
    for receipt, closing, of_past in ((past, [], True), (wipe, ["--closing"], True), (newest, [], False)):
        run = autoclave("receipt", "export", receipt, tmp_path / "after", *closing, *state)
        assert (run.exit_code, run.stderr) == (0, "")
        assert (Path(run.stdout.strip()).name == Path(given).name) == of_past


def test_a_receipt_whose_handover_is_forgotten_is_exported(service, autoclave, gpu, tmp_path, monkeypatch):
    receipt = service.settled(gpu, "clean").receipt.id
    monkeypatch.setattr(tenant_files, "EARLIER", 0)
    run = autoclave("receipt", "export", receipt, tmp_path, "--state-dir", service.root / "state")
    assert Path(run.stdout.strip()) == tmp_path / receipt
    assert f"verify the file {tmp_path / receipt / 'receipt.dsse.json'} alone" in run.stderr


def test_an_export_signs_nothing(own_service, autoclave, tmp_path):
    """Its proof ends in the newest checkpoint that the service has signed; without it, there is no proof."""
    receipt, state = own_service.settled(0, "clean").receipt.id, own_service.root / "state"
    export = ("receipt", "export", receipt, tmp_path / "out", "--state-dir", state)
    folder = Path(autoclave(*export).stdout.strip())
    newest, ours = state / "last-checkpoint", key.read_key(state)
    assert note.parse_proof((folder / "receipt.tlog-proof").read_text()).checkpoint == newest.read_text()
    shutil.rmtree(folder)
    signed = note.opened(newest.read_text(), [ours.public_key])
    for content, why in (
        (note.sign(replace(signed, size=1), ours), "it was made before the receipt"),
        (note.sign(replace(signed, root=bytes(32)), ours), "does not lead from this receipt"),
        (note.sign(signed, OTHER), "is not signed by the key"),
        (None, "has not signed a checkpoint yet"),
    ):
        newest.unlink() if content is None else newest.write_text(content)
        run = autoclave(*export)
        assert (run.exit_code, why in run.stderr, folder.exists()) == (2, True, False), run.stderr


def test_an_export_writes_into_no_file_of_others(service, autoclave, gpu, tmp_path):
    """Neither through a link, nor into a pipe, nor into a folder that others may change."""
    receipt = service.settled(gpu, "clean").receipt.id
    export = ("receipt", "export", receipt, tmp_path / "out", "--state-dir", service.root / "state")
    folder = Path(autoclave(*export).stdout.strip())
    envelope, proof = (folder / name for name in ("receipt.dsse.json", "receipt.tlog-proof"))
    files = envelope.read_text(), proof.read_text().splitlines()[:3]  # the rest grows with the log
    (tmp_path / "precious").write_text("precious")
    envelope.unlink()
    envelope.symlink_to(tmp_path / "precious")
    proof.unlink()
    os.mkfifo(proof)
    assert autoclave(*export).exit_code == 0
    assert (tmp_path / "precious").read_text() == "precious"
    assert proof.is_file()
    assert (envelope.read_text(), proof.read_text().splitlines()[:3]) == files
    folder.chmod(0o777)
    refused = autoclave(*export)
    folder.rename(tmp_path / "real")
    folder.symlink_to(tmp_path / "real")
    for run, why in ((refused, "other users may write to it"), (autoclave(*export), "it is a link")):
        assert (run.exit_code, why in run.stderr) == (2, True)


def test_the_key_is_shown_in_three_forms_and_rotated(autoclave, tmp_path):
    tmp_path.chmod(0o700)
    made = key.open_key(tmp_path)
    pem, vkey, document = (
        autoclave("receipt", "key", "-o", form, "--node-name", "n", "--state-dir", tmp_path).stdout
        for form in ("pem", "vkey", "json")
    )
    assert {key.public_key_of(text) for text in (pem, vkey)} == {made.public_key}
    assert json.loads(document)["key"] == made.key_id
    assert vkey.startswith("autoclave/n+")
    rotated = autoclave("receipt", "key", "--rotate", "--state-dir", tmp_path)
    assert key.public_key_of(rotated.stdout) == key.read_key(tmp_path).next.public_key  # type: ignore[union-attr]  # made
    assert "next start" in rotated.stderr
    assert key.public_key_of(autoclave("receipt", "key", "--state-dir", tmp_path).stdout) == made.public_key


def test_a_closing_receipt_alone_is_named_as_one(verify, files):
    shutil.copy(FOLDER / "closing" / "closing.dsse.json", files / "mail.json")
    run = verify(path="mail.json")
    assert (run.exit_code, "it is a closing receipt: give --closing" in run.stderr) == (1, True)
    assert verify("--closing", path="mail.json").exit_code == 0
    assert "give --closing" not in verify(path=HANDOVER, trusted="other.pem").stderr


def test_the_script_names_a_document_of_a_site(files):
    (files / "node.json").write_text(dsse.endorse(NODE.public_key, SITE))
    script = [sys.executable, "-I", SCRIPT, files / HANDOVER, f"--key={files / 'node.json'}"]
    run = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (run.returncode, "key: a site signed it: use `autoclave receipt verify --site-key`" in run.stderr) == (
        2,
        True,
    )


def test_an_unsigned_receipt_is_refused(verify, files):
    (files / HANDOVER / "receipt.dsse.json").write_text(dsse.envelope(b"{}"))
    assert "it names no key" in verify().stderr
