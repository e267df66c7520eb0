"""The programs of a real node, on a machine of their own: started, ended, restarted.

The machine is what ``isolated`` makes, with all of them as processes; or a whole one, with systemd, as ``make machine``
boots it. There the runtime and the kubelet are units, and the control plane is that of another machine.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM, Signals

from tests.cluster import isolated
from tests.cluster.isolated import SERVICE, STATE
from tests.deploy import kubernetes_versions
from tests.patience import WITHIN

WHOLE = Path("/run/systemd/system").is_dir()  # a machine that ``isolated`` makes has no systemd
# The name of such a node, its address, and its kubelet's port.
WHOLE_NODE, WHOLE_ADDRESS, WHOLE_PORT = "machine", "198.51.100.2", 10251
NODE, ADDRESS, KUBELET_PORT = (WHOLE_NODE, WHOLE_ADDRESS, WHOLE_PORT) if WHOLE else ("node", isolated.ADDRESS, 10250)
IMAGE = "localhost/pods:1"
OF_NODE = ("kubelet", "containerd", "ctr", "containerd-shim-runc-v2", "gpuapp", "pause")
OF_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
ALL = (*OF_NODE, *OF_CONTROL_PLANE)
# Program: package of Debian.
PACKAGES_OF_NODE = {"runc": "runc", "bridge": "containernetworking-plugins"}
PACKAGES_OF_CONTROL_PLANE = {"etcd": "etcd-server", "openssl": "openssl"}
NETWORK_PROGRAMS = "/usr/lib/cni:/opt/cni/bin"  # Debian's place, and that of others
WHOLE_PODS = "10.244.1.0/24"
PODS = WHOLE_PODS if WHOLE else "10.244.0.0/24"
PORT = 443  # the service of the API server has it, too: nothing forwards
API = f"https://{SERVICE}:{PORT}"
TOKEN, NODE_TOKEN = "admin", NODE  # known only on this machine's loopback
CONTAINERD = STATE / "containerd.sock"
CERTIFICATE, KEY = STATE / "apiserver.crt", STATE / "apiserver.key"
KUBECONFIG, NODE_KUBECONFIG = STATE / "kubeconfig", STATE / "kubelet.kubeconfig"
MANIFESTS = STATE / "manifests"  # of static pods
# What the runtime's handlers of these names start instead of runc; a test that needs one writes it.
NVIDIA, NUMBERED = STATE / "nvidia-container-runtime", STATE / "numbered-runc"


def missing(folder: Path) -> str | None:
    """Why no node can run here; None if one can."""
    if not STATE.is_dir():
        return "a node needs a machine of its own: run make cluster"
    if WHOLE:
        return absent(folder, OF_NODE, PACKAGES_OF_NODE)
    return absent(folder, ALL, PACKAGES_OF_NODE | PACKAGES_OF_CONTROL_PLANE)


def absent(folder: Path, wanted: Sequence[str], packages: Mapping[str, str]) -> str | None:
    """What is missing of programs in this folder and of packages; None if nothing is."""
    if names := [name for name in wanted if not os.access(folder / name, os.X_OK)]:
        return f"{', '.join(names)} not found in {folder}: run make node"
    places = f"{os.environ['PATH']}:{NETWORK_PROGRAMS}"
    if names := [package for name, package in packages.items() if shutil.which(name, path=places) is None]:
        return f"not installed: {', '.join(names)}"
    return None


@dataclass
class Program:
    """A program of the node, as a process."""

    name: str
    command: list[str | Path]
    logs: Path
    folder: Path | None = None  # programs that it starts
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def log(self) -> Path:
        """The file with all that it wrote."""
        return self.logs / f"{self.name}.log"

    def start(self) -> None:
        """Start it; it is not ready yet."""
        path = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"} if self.folder else None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=path
            )

    def end(self, number: Signals = SIGTERM) -> None:
        """Send a signal, and wait until the process has ended."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(WITHIN)
        self.process = None

    def demand_running(self) -> None:
        """Fail with the end of the log if the process has ended."""
        if self.process is None or self.process.poll() is not None:
            raise AssertionError(f"{self.name} has ended:\n{self.log.read_text(errors='replace')[-2000:]}")


class Unit(Program):
    """A program of the node as a unit of systemd, which starts it again after a failure and after a reboot."""

    def start(self) -> None:
        """Start it; it is not ready yet."""
        command = " ".join(map(str, self.command))
        file = Path("/etc/systemd/system", f"{self.name}.service")
        file.write_text(_UNIT.format(path=f"{self.folder}:{os.environ['PATH']}", command=command, log=self.log))
        for verb in ("daemon-reload", "enable", "start"):
            _systemctl(verb, *([] if verb == "daemon-reload" else [file.name]))

    def end(self, number: Signals = SIGTERM) -> None:
        """Send a signal, and wait until the process has ended."""
        _systemctl("kill", "--kill-whom=main", f"--signal={number.name}", f"{self.name}.service")
        _systemctl("stop", f"{self.name}.service")

    def demand_running(self) -> None:
        """Fail with the end of the log if the process has ended."""
        if subprocess.run(["systemctl", "is-active", "--quiet", self.name], check=False).returncode != 0:
            raise AssertionError(f"{self.name} has ended:\n{self.log.read_text(errors='replace')[-2000:]}")


def _systemctl(*arguments: str) -> None:
    subprocess.run(["systemctl", "--quiet", *arguments], check=True)


_UNIT = """[Unit]
RequiresMountsFor={state}
After=network.target
StartLimitIntervalSec=0
[Service]
Environment=PATH={path}
ExecStart={command}
Restart=always
RestartSec=1
# The containers are the runtime's own: they outlive it.
KillMode=process
Delegate=yes
OOMScoreAdjust=-999
StandardOutput=append:{log}
StandardError=append:{log}
[Install]
WantedBy=multi-user.target
""".replace("{state}", str(STATE))


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many programs beside, each of which uses a core."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for program in running:
            program.kill()
            program.wait()


class Programs:
    """Programs that belong together, in the order in which they start."""

    def __init__(self, folder: Path, logs: Path, version: str = kubernetes_versions.NEWEST) -> None:
        """Nothing is started. ``folder``: the programs; ``logs``: what they write; ``version``: what they behave as."""
        self._folder, self._logs, self._version = folder, logs, version
        self._started: list[Program] = []

    def down(self) -> None:
        """End all programs. Containers end with the machine."""
        for program in reversed(self._started):
            if program.process is not None:
                program.end()

    def demand_running(self) -> None:
        """Fail if a program has ended by itself."""
        for program in self._started:
            program.demand_running()

    def _start(self, name: str, *command: str | Path) -> None:
        program = Program(name, ["setpriv", "--pdeathsig", "KILL", *command], self._logs, self._folder)
        program.start()
        self._started.append(program)


class ControlPlane(Programs):
    """etcd, the API server, the controllers and the scheduler."""

    def up(self) -> None:
        """Return when the API server answers."""
        self._start("etcd", "etcd", "--data-dir", STATE / "etcd", "--unsafe-no-fsync")
        _credentials()
        emulated = f"--emulated-version={self._version}"
        self._start("kube-apiserver", self._folder / "kube-apiserver", *_APISERVER, emulated)
        until_ready(self._started[-1], _api_ready)
        kubeconfig(KUBECONFIG, TOKEN)
        kubeconfig(NODE_KUBECONFIG, NODE_TOKEN)
        for name in ("kube-controller-manager", "kube-scheduler"):
            more = _CONTROLLERS if name == "kube-controller-manager" else ()
            self._start(name, self._folder / name, "--kubeconfig", KUBECONFIG, "--leader-elect=false", emulated, *more)


class Node(Programs):
    """The runtime and the kubelet; with the control plane, unless that is another machine's."""

    def __init__(self, folder: Path, logs: Path, version: str = kubernetes_versions.NEWEST) -> None:
        """Nothing is started."""
        super().__init__(folder, logs, version)
        self._control_plane = None if WHOLE else ControlPlane(folder, logs, version)
        kind = Unit if WHOLE else Program
        self._runtime = kind("containerd", [folder / "containerd", "--config", STATE / "containerd.toml"], logs, folder)
        self.kubelet = kind(
            "kubelet", [folder / "kubelet", "--config", STATE / "kubelet.json", *_KUBELET], logs, folder
        )

    def up(self) -> None:
        """Return when the API server, the runtime and the kubelet's process run."""
        if self._control_plane is not None:
            self._control_plane.up()
        self.join()

    def join(self) -> None:
        """The same, where the API server runs already."""
        _runtime_files()
        self._runtime.start()
        self._started.append(self._runtime)
        until_ready(self._runtime, lambda: connects(CONTAINERD))
        self.load(write_image(IMAGE, {name: self._folder / name for name in ("gpuapp", "pause")}, "/pause"))
        self.kubelet.start()
        self._started.append(self.kubelet)

    def load(self, archive: Path) -> None:
        """Give an image to the runtime."""
        ctr: list[str | Path] = [self._folder / "ctr", "--address", CONTAINERD, "--namespace", "k8s.io"]
        subprocess.run([*ctr, "images", "import", archive], check=True, capture_output=True)

    def down(self) -> None:
        """End all programs. Containers end with the machine."""
        super().down()
        if self._control_plane is not None:
            self._control_plane.down()

    def demand_running(self) -> None:
        """Fail if a program has ended by itself."""
        super().demand_running()
        if self._control_plane is not None:
            self._control_plane.demand_running()


def until_ready(program: Program, ready: Callable[[], bool]) -> None:
    """Return when a program that was started is ready."""
    end = time.monotonic() + WITHIN
    while not ready():  # no event tells it
        program.demand_running()
        assert time.monotonic() < end, f"{program.name} is not ready"
        time.sleep(0.05)


_KUBELET = (f"--kubeconfig={NODE_KUBECONFIG}", f"--hostname-override={NODE}", f"--node-ip={ADDRESS}", "--v=2")
_APISERVER = (
    "--etcd-servers=http://127.0.0.1:2379",
    f"--advertise-address={isolated.ADDRESS}",
    f"--secure-port={PORT}",
    f"--tls-cert-file={CERTIFICATE}",
    f"--tls-private-key-file={KEY}",
    f"--token-auth-file={STATE / 'tokens.csv'}",
    "--authorization-mode=Node,RBAC",
    "--enable-admission-plugins=NodeRestriction",
    "--allow-privileged",
    "--service-cluster-ip-range=10.96.0.0/16",
    "--kubelet-preferred-address-types=InternalIP",  # the name of the node is in no DNS
    "--service-account-issuer=https://kubernetes.default.svc",
    f"--service-account-key-file={KEY}",
    f"--service-account-signing-key-file={KEY}",
)
_CONTROLLERS = (f"--service-account-private-key-file={KEY}", f"--root-ca-file={CERTIFICATE}")


def _credentials() -> None:
    """A certificate, whose key signs the tokens of service accounts, too; the administrator's and kubelet's tokens."""
    name = ("-subj", "/CN=node", "-addext", f"subjectAltName=IP:127.0.0.1,IP:{SERVICE}")
    made = ("-newkey", "rsa:2048", "-nodes", "-keyout", KEY, "-out", CERTIFICATE)
    subprocess.run(["openssl", "req", "-x509", *made, *name], check=True, capture_output=True)
    nodes = (f"{name},system:node:{name},{name},system:nodes" for name in (NODE, WHOLE_NODE))
    users = (f"{TOKEN},admin,admin,system:masters", *nodes)
    (STATE / "tokens.csv").write_text("\n".join(users))


def kubeconfig(path: Path, token: str) -> None:
    """Write the file with which a user finds the API server."""
    cluster = {"server": API, "certificate-authority": str(CERTIFICATE)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "node", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "node", "context": {"cluster": "node", "user": "user"}}],
        "current-context": "node",
    }
    path.write_text(json.dumps(document))


def _runtime_files() -> None:
    networks = STATE / "networks"
    for folder in (networks, MANIFESTS):
        folder.mkdir(exist_ok=True)
    (networks / "pods.conflist").write_text(json.dumps(_NETWORK))
    (STATE / "containerd.toml").write_text(_CONTAINERD)
    (STATE / "kubelet.json").write_text(json.dumps(_KUBELET_CONFIGURATION))


# Pods that do not use the network of the host reach the node, and the API server at the address of its service.
_NETWORK = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "isGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}
_CONTAINERD = f"""
version = 3
root = "{STATE}/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  conf_dir = "{STATE}/networks"
  bin_dirs = {json.dumps(NETWORK_PROGRAMS.split(":"))}
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    SystemdCgroup = {json.dumps(WHOLE)}
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.numbered]
  runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.numbered.options]
    BinaryName = "{NUMBERED}"
    SystemdCgroup = {json.dumps(WHOLE)}
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
    BinaryName = "{NVIDIA}"
    SystemdCgroup = {json.dumps(WHOLE)}
"""
_KUBELET_CONFIGURATION = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "port": KUBELET_PORT,
    "failCgroupV1": isolated.second_version(),  # its default is true: a machine with version 1 alone needs leave
    # Of ``isolated``, a systemd of the machine outside would be told process ids of another namespace.
    "cgroupDriver": "systemd" if WHOLE else "cgroupfs",
    "failSwapOn": False,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
    "maxPods": 200,
    "staticPodPath": str(MANIFESTS),
    "evictionHard": {"memory.available": "100Mi"},
    "localStorageCapacityIsolation": False,
}


def _api_ready() -> bool:
    context = ssl.create_default_context(cafile=CERTIFICATE)
    connection = http.client.HTTPSConnection("127.0.0.1", PORT, context=context, timeout=WITHIN)
    try:
        connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
        return connection.getresponse().status == http.client.OK
    except ConnectionError:
        return False
    finally:
        connection.close()


def connects(path: Path) -> bool:
    """Whether a process listens on this socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def write_image(name: str, programs: dict[str, Path], entry: str) -> Path:
    """An archive with an image, as ``docker save`` writes it. ``programs``: by their place in the image."""
    layer = _tar({place: program.read_bytes() for place, program in programs.items()})
    return archive_of(name, layer, Entrypoint=[entry], Env=["PATH=/bin"])


def archive_of(name: str, layer: bytes, **configuration: object) -> Path:
    """The same, of one layer. ``configuration``: what the image says of its containers."""
    config = {
        "architecture": os.uname().machine.replace("x86_64", "amd64").replace("aarch64", "arm64"),
        "os": "linux",
        "config": configuration,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    documents = {"config.json": config, "manifest.json": manifest}
    files = {name: json.dumps(document).encode() for name, document in documents.items()}
    archive = STATE / "image.tar"
    archive.write_bytes(_tar({**files, "layer.tar": layer}))
    return archive


def _tar(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()
