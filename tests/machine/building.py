"""The image of the machine: Debian with systemd and version 2 of control groups, and this checkout's environment.

It is made once, and again when what it is made of changes. Making it takes root, in mounts and processes of its own:
no mount, service or control group of this machine is touched. Packages come from where this machine's apt and pip get
theirs.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.machine.progress import say

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/machine"
IMAGE, KERNEL, INITRD, KEY = (FOLDER / name for name in ("disk.img", "vmlinuz", "initrd", "key"))
INSIDE = "/srv/autoclave"  # this checkout, in the machine
SUITE = "trixie"
PAGE = ROOT / "docs/without-kubernetes.md"
LOCK = "deploy/requirements/none.lock"
SIZE = 12 << 30  # bytes of the disk; what is not used takes no space here
PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "udev", "libpam-systemd", "linux-image-cloud-amd64", "openssh-server",
    "iproute2", "kmod", "procps", "ca-certificates", "git", "make", "gcc", "libc6-dev", "python3", "python3-venv",
    "runc", "strace", "busybox-static", "cpio", "docker.io", "docker-cli", "podman", "crun", "netavark",
    "aardvark-dns", "iptables", "sudo", "munge", "slurmctld", "slurmd", "slurm-client", "containernetworking-plugins",
)  # fmt: skip
# Each is started where it is tried: a boot is slow enough.
QUIET = (
    "docker.service", "docker.socket", "containerd", "podman", "podman-restart", "podman.socket", "munge", "slurmctld",
    "slurmd", "apt-daily.timer", "apt-daily-upgrade.timer", "podman-auto-update.timer", "fstrim.timer",
    "e2scrub_all.timer", "dpkg-db-backup.timer",
)  # fmt: skip
PROGRAMS = {  # what this machine needs: program to package of Debian
    "qemu-system-x86_64": "qemu-system-x86", "debootstrap": "debootstrap", "mkfs.ext4": "e2fsprogs",
    "qemu-img": "qemu-utils", "ssh": "openssh-client",
}  # fmt: skip
_INSIDE = "--inside"
_NAMESPACES = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc")
_PASSED_ON = ("PIP_", "UV_", "SSL_")  # settings of the machine for its package index
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# A small one: Debian's own takes half of the time to boot, where the processor is emulated.
_INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b insmod /virtio_blk.ko
until [ -b /dev/vda ]; do $b sleep 0.1; done
$b mount -t ext4 -o rw /dev/vda /root
$b umount /dev
exec $b switch_root /root /sbin/init
"""


class NoMachineError(Exception):
    """Says what is missing."""


def demand() -> None:
    """Build the image unless it is there; a NoMachineError says what this machine lacks."""
    if absent := sorted({package for name, package in PROGRAMS.items() if shutil.which(name) is None}):
        raise NoMachineError(f"not installed: {', '.join(absent)} (names of Debian's packages)")
    sources = (Path(__file__), ROOT / "requirements.lock", ROOT / LOCK)
    made_of = hashlib.sha256("".join(path.read_text() for path in sources).encode()).hexdigest()
    mark = FOLDER / "made-of"
    if mark.exists() and mark.read_text() == made_of:
        return
    if os.geteuid() != 0:
        raise NoMachineError("its image is not built yet, and building it takes root: run make machine as root once")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with (FOLDER / "build.log").open("wb") as log:
        command = [*_NAMESPACES, sys.executable, "-m", "tests.machine.building", _INSIDE]
        done = subprocess.run(command, cwd=ROOT, stdout=log, check=False)
    if done.returncode != 0:
        raise NoMachineError(f"see {log.name}")
    mark.write_text(made_of)
    owner = ROOT.stat()
    for path in (FOLDER, *FOLDER.iterdir()):  # the machine runs without root, and ssh wants the key to be its user's
        os.chown(path, owner.st_uid, owner.st_gid)


def _build() -> None:
    """Runs in mounts and processes of its own."""
    root = FOLDER / "root"
    _packages(root)
    _environment(root)
    _settings(root)
    say("writing the image")
    with IMAGE.open("wb") as image:
        image.truncate(SIZE)
    for place in ("dev", "proc"):
        _run("umount", root / place)
    _initrd(root)
    _run("mkfs.ext4", "-q", "-F", "-d", root, "-E", "lazy_itable_init=1,lazy_journal_init=1", IMAGE)
    [kernel] = (root / "boot").glob("vmlinuz-*")
    shutil.copy(kernel, KERNEL)
    shutil.rmtree(root)


def _packages(root: Path) -> None:
    wanted = ["--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Component: main"]
    places = subprocess.run(["apt-get", "indextargets", *wanted], capture_output=True, text=True, check=True).stdout
    if not places:
        raise NoMachineError("apt knows no archive of Debian: run apt-get update")
    say(f"installing Debian {SUITE}")
    _run("debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, root, places.split()[0])
    _run("mount", "-t", "proc", "proc", root / "proc")
    _run("mount", "--bind", "/dev", root / "dev")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")  # no service starts while it is built
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    (root / "etc/dpkg/dpkg.cfg.d/machine").write_text("force-unsafe-io\npath-exclude=/usr/share/doc/*\n")
    say(f"installing {len(PACKAGES)} packages, with what they need")
    _inside(root, "apt-get", "update", "-q")
    _inside(root, "apt-get", "install", "-q", "-y", "--no-install-recommends", *PACKAGES)
    _inside(root, "apt-get", "clean")
    (root / "usr/sbin/policy-rc.d").unlink()


def _environment(root: Path) -> None:
    say("installing this checkout")
    if _CERTIFICATES.exists():
        shutil.copy(_CERTIFICATES, root / _CERTIFICATES.relative_to("/"))
    _run("git", "clone", "-q", ROOT, f"{root}{INSIDE}")
    _inside(root, "make", "-s", "-C", INSIDE, ".venv/.ready")
    say("installing Autoclave's dependencies as the page for machines without Kubernetes says")
    for line in installing()[:2]:
        _inside(root, "sh", "-ec", f"cd {INSIDE} && {line}")


def installing() -> list[str]:
    """The lines of the page that install Autoclave: without CUDA. The first two need a network."""
    text = PAGE.read_text().split("## Install")[1].split("```")[1]
    lines = [line.split(" #")[0].strip() for line in text.splitlines() if line]
    return [line.replace("deploy/requirements/cuda12.lock", LOCK) for line in lines]


def _settings(root: Path) -> None:
    files = {
        "etc/hostname": "machine\n",
        "etc/hosts": "127.0.0.1 localhost machine\n",
        "etc/fstab": "/dev/vda / ext4 defaults 0 1\n",
        "etc/systemd/network/all.network": "[Match]\nName=e*\n[Network]\nDHCP=yes\n",
        "etc/ssh/sshd_config.d/machine.conf": (
            "PermitRootLogin prohibit-password\nUseDNS no\nGatewayPorts clientspecified\n"
        ),
    }
    for name, text in files.items():
        (root / name).write_text(text)
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", KEY)
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(KEY.with_suffix(".pub"), root / "root/.ssh/authorized_keys")
    _inside(root, "useradd", "--create-home", "--shell", "/bin/bash", "ordinary")
    _inside(root, "git", "config", "--system", "safe.directory", "*")
    _inside(root, "chown", "-R", "ordinary:", INSIDE)
    _inside(root, "systemctl", "enable", "-q", "systemd-networkd", "ssh")
    _inside(root, "systemctl", "disable", "-q", *QUIET)
    _inside(root, "systemctl", "mask", "-q", "systemd-networkd-wait-online", "systemd-firstboot")


def _initrd(root: Path) -> None:
    folder = root / "tmp/initrd"
    for name in ("bin", "dev", "root"):
        (folder / name).mkdir(parents=True)
    shutil.copy(root / "bin/busybox", folder / "bin/busybox")
    [module] = (root / "lib/modules").glob("*/kernel/drivers/block/virtio_blk.ko.xz")
    (folder / "virtio_blk.ko").write_bytes(lzma.decompress(module.read_bytes()))
    (folder / "init").write_text(_INIT)
    (folder / "init").chmod(0o755)
    _inside(root, "sh", "-c", "cd /tmp/initrd && find . | cpio --create --format=newc --quiet > /tmp/initrd.cpio")
    shutil.copy(root / "tmp/initrd.cpio", INITRD)


def _inside(root: Path, *command: str) -> None:
    passed_on = [f"{name}={word}" for name, word in os.environ.items() if name.startswith(_PASSED_ON)]
    fixed = ("HOME=/root", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
    _run("chroot", root, "env", "-i", *fixed, *passed_on, *command)


def _run(*command: str | Path) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, stderr=sys.stdout, check=True)


if __name__ == "__main__":
    _build()
