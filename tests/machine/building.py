"""What the machine is made of: an image of Debian with systemd, and kernels that run as ordinary processes.

Both are made once, and again when what they are made of changes. No root is needed: the image is built in namespaces of
its own, where Debian's fakeroot remembers who owns which file. Packages come from where this machine's apt and pip get
theirs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.machine.progress import say

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/machine"
IMAGE, LOG = FOLDER / "disk.img", FOLDER / "build.log"
INSIDE = "/srv/autoclave"  # this checkout, in the machine
SUITE = "trixie"
# Debian's package user-mode-linux in each release that has another one. The first is the machine's own.
KERNELS = {"6.12": "trixie", "6.1": "bookworm", "7.2": "sid", "5.10": "bullseye"}
PAGE = ROOT / "docs/without-kubernetes.md"
LOCK = "deploy/requirements/none.lock"
SIZE = 8 << 30  # bytes of the disk; what is not used takes no space here
SPACE = 4 << 30  # bytes that building it takes here
PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "udev", "libpam-systemd", "iproute2", "kmod", "procps", "ca-certificates",
    "git", "make", "gcc", "libc6-dev", "python3", "python3-venv", "e2fsprogs", "dmsetup", "strace", "busybox-static",
    "runc", "docker.io", "docker-cli", "podman", "crun", "netavark", "aardvark-dns", "containernetworking-plugins",
    "iptables", "sudo", "munge", "slurmctld", "slurmd", "slurm-client",
)  # fmt: skip
# Each is started where it is tried: a boot is slow enough.
QUIET = (
    "docker.service", "docker.socket", "containerd", "podman", "podman-restart", "podman.socket", "munge", "slurmctld",
    "slurmd", "apt-daily.timer", "apt-daily-upgrade.timer", "podman-auto-update.timer", "fstrim.timer",
    "e2scrub_all.timer", "dpkg-db-backup.timer",
)  # fmt: skip
# What waits for a module, a network or a console that these kernels lack.
NEVER = (
    "proc-sys-fs-binfmt_misc.automount", "systemd-binfmt", "systemd-networkd-wait-online", "systemd-firstboot",
    "getty@tty1",
)  # fmt: skip
# Of requirements.lock: what only linters, dashboards, the chart's policies and a GPU need.
_LEFT_OUT = (
    "cel-expr-python", "cupy-", "grafana-", "hadolint", "import-linter", "mypy", "nvidia-cuda", "promql", "ruff",
    "shellcheck", "types-", "zizmor",
)  # fmt: skip
PROGRAMS = {  # what this machine needs: program to package of Debian
    "apt-get": "apt", "dpkg-deb": "dpkg", "git": "git", "unshare": "util-linux", "setpriv": "util-linux",
}  # fmt: skip
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_ESSENTIAL = ("?essential", "apt", "fakeroot")
_PASSED_ON = ("PIP_", "UV_", "SSL_")  # settings of the machine for its package index
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
NAMESPACES = ("unshare", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child")
_ENTER = """mount --bind "$1" "$0/media"
for each in dev proc; do mount --rbind "/$each" "$0/$each"; done
shift
PATH=$PATH:/usr/sbin:/sbin chroot "$0" "$@"
"""
# Whose file is whose: only one user is known in the namespaces.
_FAKEROOT = ("fakeroot-sysv", "-i", "/media/owners", "-s", "/media/owners")
_INSTALL = """{
  .venv/bin/uv pip install -q --python .venv/bin/python -r /srv/tests.lock ||
  .venv/bin/python -m pip install -qq -r /srv/tests.lock
}"""
_WRITE = "mount --bind / /mnt; mkfs.ext4 -q -F -d /mnt -E lazy_itable_init=1,lazy_journal_init=1 /media/new.img"
# Process 1 of the machine until systemd takes its place. hostfs shows the kernel's own root on the host.
_START = """#!/bin/sh
mount -t hostfs none /outside
mount --bind /outside/usr/lib/uml/modules /usr/lib/modules
mount --bind /outside/run /host
exec /sbin/init
"""
_AGENT = """[Unit]
Description=Runs what the host asks for
[Service]
ExecStart=/usr/bin/python3 /host/agent.py
KillMode=process
[Install]
WantedBy=multi-user.target
"""


class NoMachineError(Exception):
    """Says what is missing."""


def demand(versions: Sequence[str]) -> None:
    """Build the image and bring the kernels, unless they are there; a NoMachineError says what this machine lacks."""
    if absent := sorted({package for name, package in PROGRAMS.items() if shutil.which(name) is None}):
        raise NoMachineError(f"not installed: {', '.join(absent)} (names of Debian's packages)")
    if not _KEYRING.exists():
        raise NoMachineError("not installed: debian-archive-keyring (name of Debian's package)")
    if subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode != 0:
        raise NoMachineError(
            "no user namespaces for you; as root: sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)"
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    manifest = ROOT / "scrubber/cuda/kernels/manifest.json"
    sources = (Path(__file__), ROOT / "requirements.lock", ROOT / LOCK, manifest)
    made_of = hashlib.sha256("".join(path.read_text() for path in sources).encode()).hexdigest()
    mark = FOLDER / "made-of"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be building
        try:
            if not mark.exists() or mark.read_text() != made_of:
                mark.unlink(missing_ok=True)
                _build()
                mark.write_text(made_of)
            for version in versions:
                _bring(version)
        except subprocess.CalledProcessError as error:
            raise NoMachineError(f"cannot build it: see {LOG}") from error


def kernel(version: str) -> Path:
    """The root of a kernel: Debian's program for it, its modules, and the C library of its release."""
    return FOLDER / "kernels" / version


def _build() -> None:
    for name in ("root", "apt", "kernels"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    if (free := shutil.disk_usage(FOLDER).free) < SPACE:
        raise NoMachineError(f"building it takes {SPACE >> 30} GiB, and {FOLDER} has {free / 2**30:.1f} GiB left")
    LOG.write_bytes(b"")
    root = FOLDER / "root"
    _packages(root)
    _environment(root)
    _settings(root)
    say("writing the image")
    with (FOLDER / "new.img").open("wb") as image:
        image.truncate(SIZE)
    _inside(root, "sh", "-ec", _WRITE)
    (FOLDER / "new.img").rename(IMAGE)  # a machine that runs keeps the old one
    for name in ("root", "apt"):
        shutil.rmtree(FOLDER / name)


def _bring(version: str) -> None:
    if kernel(version).exists():
        return
    say(f"loading Linux {version}")
    shutil.rmtree(root := FOLDER / "unpacked", ignore_errors=True)
    for deb in _debs(KERNELS[version], "download", "user-mode-linux", "libc6", "libgcc-s1"):
        _run("dpkg-deb", "-x", deb, root)
    for name in ("lib", "lib64"):
        if not (root / name).exists():  # older releases have directories
            (root / name).symlink_to(f"usr/{name}")
    for name in ("dev", "image", "proc", "run"):
        (root / name).mkdir(exist_ok=True)
    shutil.rmtree(FOLDER / "apt")
    kernel(version).parent.mkdir(exist_ok=True)
    root.rename(kernel(version))


def _packages(root: Path) -> None:
    say(f"loading Debian {SUITE}")
    essential = _debs(SUITE, "install", *_ESSENTIAL)
    _debs(SUITE, "install", *_ESSENTIAL, *PACKAGES)
    say(f"installing {len(PACKAGES)} packages, with what they need")
    for deb in essential:
        _run("dpkg-deb", "-x", deb, root)
    for name in ("media", "mnt"):  # a package makes them when it is configured
        (root / name).mkdir(exist_ok=True)
    for name, text in {
        "etc/apt/sources.list": _sources(SUITE),
        "etc/dpkg/dpkg.cfg.d/machine": "force-unsafe-io\npath-exclude=/usr/share/doc/*\n",
        "usr/sbin/policy-rc.d": "#!/bin/sh\nexit 101\n",  # no service starts while it is built
        "var/lib/dpkg/status": "",
    }.items():
        _write(root / name, text)
    shutil.rmtree(root / "var/lib/apt/lists")
    shutil.copytree(FOLDER / "apt/lists", root / "var/lib/apt/lists")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    _write(FOLDER / "owners", "")
    cache = "-oDir::Cache::archives=/media/apt/debs"
    _inside(root, "dpkg", "--force-depends", "--install", *(f"/media/apt/debs/{deb.name}" for deb in essential))
    _inside(root, "apt-get", "install", "-q", "-y", "--no-install-recommends", "--no-download", cache, *PACKAGES)
    for name in ("usr/sbin/policy-rc.d", "etc/apt/sources.list"):
        (root / name).unlink()


def _environment(root: Path) -> None:
    say("installing this checkout")
    if _CERTIFICATES.exists():
        shutil.copy(_CERTIFICATES, root / _CERTIFICATES.relative_to("/"))
    _run("git", "clone", "-q", ROOT, f"{root}{INSIDE}")
    _inside(root, "make", "-s", "-C", INSIDE, ".venv/.demo")
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    _write(root / "srv/tests.lock", "\n".join(line for line in lines if not line.startswith(_LEFT_OUT)))
    _inside(root, "sh", "-ec", f"cd {INSIDE} && {_INSTALL} && touch .venv/.ready")
    say("compiling the kernels of GPUs, which a wheel holds")
    _inside(root, "sh", "-ec", f"cd {INSIDE} && make -s kernels && rm -r build")
    say("installing Autoclave's dependencies as the page for machines without Kubernetes says")
    for line in installing()[:2]:
        _inside(root, "sh", "-ec", f"cd {INSIDE} && {line}")


def installing() -> list[str]:
    """The lines of the page that install Autoclave: without CUDA. The first two need a network."""
    text = PAGE.read_text().split("## Install")[1].split("```")[1]
    lines = [line.split(" #")[0].strip() for line in text.splitlines() if line]
    return [line.replace("deploy/requirements/cuda12.lock", LOCK) for line in lines]


def _settings(root: Path) -> None:
    for name, text in {
        "etc/hostname": "machine\n",
        "etc/hosts": "127.0.0.1 localhost machine\n",
        "etc/fstab": "/dev/ubda / ext4 defaults 0 1\n",
        "etc/docker/daemon.json": '{"iptables": false, "ip6tables": false}\n',  # these kernels have no iptables
        "etc/modules-load.d/loop.conf": "loop\n",
        "etc/systemd/system/agent.service": _AGENT,
        "usr/sbin/start": _START,
    }.items():
        _write(root / name, text)
    for name in ("host", "outside", "usr/lib/modules"):
        (root / name).mkdir(exist_ok=True)
    _inside(root, "useradd", "--create-home", "--shell", "/bin/bash", "ordinary")
    _inside(root, "git", "config", "--system", "safe.directory", "*")
    _inside(root, "chown", "-R", "ordinary:", INSIDE)
    _inside(root, "systemctl", "enable", "-q", "agent")
    _inside(root, "systemctl", "disable", "-q", *QUIET)
    _inside(root, "systemctl", "mask", "-q", *NEVER)
    shutil.rmtree(root / "root/.cache", ignore_errors=True)


def _sources(suite: str) -> str:
    wanted = ["--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Component: main"]
    places = subprocess.run(["apt-get", "indextargets", *wanted], capture_output=True, text=True, check=True).stdout
    place = next((line for line in places.split() if "security" not in line), "http://deb.debian.org/debian")
    return f"deb [signed-by={_KEYRING}] {place} {suite} main\n"


def _debs(suite: str, verb: str, *packages: str) -> list[Path]:
    """Packages of a release of Debian, and what they need when the verb is "install"; nothing is installed here."""
    apt = FOLDER / "apt"
    first = not apt.exists()
    for name in ("lists/partial", "debs/partial", "cache"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    _write(apt / "sources.list", _sources(suite))
    _write(apt / "status", "")
    settings = {
        "Dir::State": apt, "Dir::State::lists": apt / "lists", "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache", "Dir::Cache::archives": apt / "debs",
        "Dir::Etc::sourcelist": apt / "sources.list", "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null", "APT::Sandbox::User": "", "APT::Install-Recommends": "false",
        "APT::Architecture": "amd64", "APT::Architectures": "amd64", "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
    }  # fmt: skip
    command = ["apt-get", "-q", "-y", *(f"-o{name}={value}" for name, value in settings.items())]
    if first:
        _run(*command, "update")
    _run(*command, verb, *(["--download-only"] if verb == "install" else []), *packages, where=apt / "debs")
    return sorted((apt / "debs").glob("*.deb"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755 if text.startswith("#!") else 0o644)


def _inside(root: Path, *command: str) -> None:
    passed_on = [f"{name}={word}" for name, word in os.environ.items() if name.startswith(_PASSED_ON)]
    fixed = (
        "HOME=/root", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "FAKEROOTDONTTRYCHOWN=1",
    )  # fmt: skip
    _run(*NAMESPACES, "sh", "-ec", _ENTER, root, FOLDER, "env", "-i", *fixed, *passed_on, *_FAKEROOT, *command)


def _run(*command: str | Path, where: Path = ROOT) -> None:
    with LOG.open("ab") as log:
        subprocess.run(command, cwd=where, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
