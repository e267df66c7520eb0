"""The key is made once, kept, and never replaced unless somebody asks for that."""

import base64
import os
import subprocess
import sys
from importlib import util

import pytest
from cryptography.hazmat.primitives import serialization

from ground import paths
from scrubber.receipts import key
from scrubber.receipts.key import ReceiptError
from tests.receipts.signing import WordSigner


@pytest.fixture
def state_dir(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


def files(state_dir):
    folder = paths.receipt_key(state_dir)
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


def test_the_first_start_makes_a_key_that_lasts(state_dir):
    made = key.open_key(state_dir)
    assert files(state_dir) == {"key.pem": 0o600, "secret": 0o600}
    assert paths.receipt_key(state_dir).stat().st_mode & 0o777 == 0o700
    assert key.open_key(state_dir) == made
    assert key.verify(made.public_key, made.sign(b"text"), b"text")
    assert len(made.key_id) == 16


def test_each_node_has_its_own_key_and_secret(state_dir):
    one, other = (key.open_key(state_dir / name) for name in ("a", "b") if not (state_dir / name).mkdir(mode=0o700))
    assert one.public_key != other.public_key
    assert one.secret != other.secret
    assert one.secret.hex() not in repr(one)


def test_a_start_that_was_killed_is_repeated(state_dir):
    (state_dir / ".receipt-key.new").mkdir(mode=0o700)
    (state_dir / ".receipt-key.new" / "key.pem").write_text("half")
    key.open_key(state_dir)
    assert files(state_dir) == {"key.pem": 0o600, "secret": 0o600}


@pytest.mark.parametrize("name", ["key.pem", "secret"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: path.chmod(0o644), r"its mode is 0644, .* chmod 600 .*receipt key --rotate"),
        (lambda path: path.unlink(), "is missing; restore it from a copy"),
        (lambda path: path.write_bytes(b"short"), "it holds no Ed25519 key|it has 5 bytes, not 32"),
        (lambda path: path.rename(path.with_name("b")) and path.symlink_to("b"), "it is a link"),
        (lambda path: path.chmod(0o620), "other users may write to it"),
        (lambda path: path.parent.chmod(0o720), "other users may write to it"),
    ],
)
def test_a_wrong_file_is_an_error_and_stays(state_dir, name, change, why):
    key.open_key(state_dir)
    path = paths.receipt_key(state_dir) / name
    change(path)
    before = path.read_bytes() if path.exists() else None
    for _ in range(2):
        with pytest.raises(ReceiptError, match=why):
            key.open_key(state_dir)
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_key_with_a_letter_too_many_is_an_error(state_dir):
    key.open_key(state_dir)
    path = paths.receipt_key(state_dir) / "key.pem"
    path.write_bytes(path.read_bytes().replace(b"\n-----END", b"A\n-----END"))
    with pytest.raises(ReceiptError, match="it holds no Ed25519 key"):
        key.open_key(state_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of another user takes root")
def test_a_key_of_another_user_is_an_error(state_dir):
    key.open_key(state_dir)
    os.chown(paths.receipt_key(state_dir) / "key.pem", 4711, 4711)
    with pytest.raises(ReceiptError, match="it belongs to another user"):
        key.open_key(state_dir)


def test_a_rotation_replaces_the_key_and_keeps_the_secret(state_dir):
    old = key.open_key(state_dir)
    following = key.make_next(state_dir)
    assert key.make_next(state_dir) == following
    opened = key.open_key(state_dir)
    assert old is not None
    assert opened is not None
    assert (opened.public_key, opened.next) == (old.public_key, following)  # until the rotation is recorded
    taken = key.take_next(state_dir)
    assert (taken.public_key, taken.secret, taken.next) == (following.public_key, old.secret, None)
    assert files(state_dir) == {"key.pem": 0o600, "secret": 0o600}


def test_without_cryptography_nothing_is_signed_or_verified(monkeypatch):
    monkeypatch.setattr(util, "find_spec", lambda _name: None)
    assert not key.can_sign()
    with pytest.raises(ReceiptError, match="install the extra `receipts`"):
        key.verify(b"", b"", b"")


def test_nothing_loads_cryptography_before_it_signs():
    code = "import scrubber.daemon, scrubber.assembly, sys; from scrubber.receipts import dsse, key, tenant_files"
    code += "; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "scrubber.receipts.key" in loaded
    assert "cryptography" not in loaded


def test_openssl_reads_both_halves_of_a_key(state_dir):
    """``cryptography`` hands them to OpenSSL."""
    made = key.open_key(state_dir)
    private = serialization.load_pem_private_key((paths.receipt_key(state_dir) / "key.pem").read_bytes(), None)
    public = serialization.load_pem_public_key(key.public_pem(made.public_key).encode())
    assert private.public_key() == public
    assert public.public_bytes_raw() == made.public_key  # type: ignore[union-attr]  # it is an Ed25519 key


def test_a_public_key_is_read_in_three_forms():
    public = WordSigner().public_key
    for text in (key.public_pem(public), key.vkey(public, "autoclave/gpu-1"), base64.b64encode(public).decode()):
        assert key.public_key_of(f"\n{text}\n") == public


@pytest.mark.parametrize(
    "text",
    [
        "", "?", "\u2014", "AAAA", key.public_pem(bytes(31)), key.public_pem(bytes(32)).replace("PUBLIC", "PRIVATE", 1),
        key.vkey(bytes(32), "a").replace("a+", "b+", 1), "a+00000000+AA==",
    ],
)  # fmt: skip
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(ReceiptError, match="not an Ed25519 public key"):
        key.public_key_of(text)
