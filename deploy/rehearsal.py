"""Publish the files of ``make release`` to a registry on the loopback, and verify them: ``make rehearsal``.

In the order of the workflow ``release``, with a key in the place of the workflow's identity: push the image and the
chart, sign both, attest what the image holds, sign the checksums. Then everything is taken from the registry by its
digest, and verified as RELEASE.md says. What was altered, or signed by somebody else, must be refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from deploy import image, release
from scrubber import __version__

PROGRAMS = {
    "docker-registry": "Debian: docker-registry",
    "skopeo": "Debian: skopeo",
    "helm": "go install helm.sh/helm/v4/cmd/helm@v4.3.1",
    "cosign": "go install github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3",
}
ANSWERS_WITHIN = 20  # seconds that the registry may take to start
IMAGE, CHART = "autoclave", "charts/autoclave"
CHART_FILE = f"autoclave-{__version__}.tgz"
BUILD = image.CUDA
BILL = f"autoclave-{__version__}-{BUILD}.cdx.json"
PUSH = release.ROOT / "deploy/push_image.sh"
OF_A_REHEARSAL = {"COSIGN_PASSWORD": "", "SKOPEO_FLAGS": "--dest-tls-verify=false"}
# No log of signatures is told: nothing of a rehearsal is public.
UNLOGGED = ("--tlog-upload=false", "--use-signing-config=false")
PRIVATE = ("--insecure-ignore-tlog=true",)
PLAIN = ("--allow-insecure-registry", "--allow-http-registry")


class FailedError(Exception):
    """A step of the rehearsal did not do what it must do."""


def run(*command: str | Path, fails: bool = False) -> str:
    """What a command said on both channels; FailedError unless it ended as it must."""
    done = subprocess.run(
        command, cwd=release.OUT, env=os.environ | OF_A_REHEARSAL, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if (done.returncode != 0) != fails:
        ended = "succeeded" if fails else f"ended with {done.returncode}"
        raise FailedError(f"`{' '.join(map(str, command))}` {ended}\n{done.stdout}")
    return done.stdout


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A registry in this folder, on a free port of the loopback: its name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        name = f"127.0.0.1:{free.getsockname()[1]}"
    (folder / "data").mkdir()
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        f"http: {{addr: '{name}'}}\n"
    )
    with (folder / "log").open("w") as log:
        serving = subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stdout=log, stderr=log)
        try:
            host, _, port = name.partition(":")
            until = monotonic() + ANSWERS_WITHIN
            while True:
                try:
                    socket.create_connection((host, int(port)), timeout=1).close()
                    break
                except OSError:
                    if serving.poll() is not None or monotonic() > until:
                        raise FailedError(f"the registry does not answer\n{(folder / 'log').read_text()}") from None
            yield name
        finally:
            serving.terminate()
            serving.wait()


def said(what: str) -> None:
    """One step was done."""
    print(f"  ok   {what}", flush=True)


def check_sums(folder: Path) -> int:
    """How many files have the digest that the checksums name; FailedError if one has another."""
    lines = (folder / release.SUMS).read_text().splitlines()
    for digest, name in (line.split("  ") for line in lines):
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise FailedError(f"{name} has another digest than {release.SUMS} says")
    return len(lines)


def publish(name: str, keys: Path) -> dict[str, str]:
    """Push, sign and attest; the published names with their digests."""
    key, tagged = ("--key", str(keys / "cosign.key")), f"{name}/{IMAGE}:{__version__}-{BUILD}"
    if not (archives := sorted(release.IMAGES.glob(f"{BUILD}-*.tar"))):
        raise FailedError(f"{release.IMAGES} has no image {BUILD}: run `make release` without --images")
    digest = run(PUSH, tagged, release.index_of(BUILD), *archives).strip()
    if digest not in (release.OUT / f"autoclave-{__version__}-nvidia.yaml").read_text():
        raise FailedError(f"the manifest for NVIDIA GPUs does not name the image that was pushed, {digest}")
    pushed = run("helm", "push", "--plain-http", CHART_FILE, f"oci://{name}/charts")
    [chart] = [line.split()[1] for line in pushed.splitlines() if line.startswith("Digest:")]
    said("the image and the chart are pushed; the manifests name the image that was pushed")
    published = {"image": f"{name}/{IMAGE}@{digest}", "chart": f"{name}/{CHART}@{chart}"}
    for each in published.values():
        run("cosign", "sign", "--yes", "--recursive", *key, *UNLOGGED, *PLAIN, each)
    about = ("--type", "cyclonedx", "--predicate", BILL)
    run("cosign", "attest", "--yes", *key, *UNLOGGED, *PLAIN, *about, published["image"])
    run("cosign", "sign-blob", "--yes", *key, *UNLOGGED, "--bundle", keys / "sums.json", release.SUMS)
    said("both are signed, so are the checksums, and it is attested what the image holds")
    return published


def verify(published: dict[str, str], keys: Path, taken: Path) -> None:
    """As somebody does who has the public key and the names."""
    key = ("--key", str(keys / "cosign.pub"))
    index = json.loads((release.OUT / release.index_of(BUILD)).read_text())
    name = published["image"].partition("@")[0]
    for each in (*published.values(), *(f"{name}@{manifest['digest']}" for manifest in index["manifests"])):
        run("cosign", "verify", *key, *PRIVATE, *PLAIN, each)
    run("cosign", "verify-attestation", *key, *PRIVATE, *PLAIN, "--type", "cyclonedx", published["image"])
    blob = ("--bundle", str(keys / "sums.json"))
    run("cosign", "verify-blob", *key, *PRIVATE, *blob, release.SUMS)
    said("each signature and the attestation are verified, by digest")
    run("helm", "pull", "--plain-http", f"oci://{published['chart']}", "--destination", taken)
    [chart] = taken.glob("*.tgz")  # by digest, and called after it
    if chart.read_bytes() != (release.OUT / CHART_FILE).read_bytes():
        raise FailedError("the chart that was pulled has other bytes than the one that was pushed")
    said("the chart that is pulled is the chart that was made")
    for each in published.values():
        run("cosign", "verify", "--key", keys / "other.pub", *PRIVATE, *PLAIN, each, fails=True)
    altered = taken / release.SUMS
    altered.write_text((release.OUT / release.SUMS).read_text().replace("0", "1", 1))
    run("cosign", "verify-blob", *key, *PRIVATE, *blob, altered, fails=True)
    said("another key and altered checksums are refused")


def main() -> None:
    """Publish and verify, and say each step."""
    if lacks := [f"{name} ({where})" for name, where in PROGRAMS.items() if shutil.which(name) is None]:
        sys.exit(f"cannot rehearse: not installed: {', '.join(lacks)}")
    if not (index := release.OUT / release.index_of(BUILD)).exists():
        sys.exit(f"cannot rehearse: there is no {index}; run `make release` first, where buildah or podman works")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            os.environ["XDG_RUNTIME_DIR"] = place  # skopeo looks for passwords there; not every user has one
            said(f"{check_sums(release.OUT)} files have the digests of {release.SUMS}")
            for name in ("cosign", "other"):
                run("cosign", "generate-key-pair", "--output-key-prefix", folder / name)
            with registry(folder) as name:
                (folder / "taken").mkdir()
                verify(publish(name, folder), folder, folder / "taken")
        except FailedError as error:
            sys.exit(f"the rehearsal failed: {error}")
    print(f"\nAutoclave {__version__} was published to a registry of this machine, and verified.")


if __name__ == "__main__":
    main()
