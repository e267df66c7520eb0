"""With the rights that the chart gives them, and no others, the programs do what they are for."""

import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from demo.standins.kubelet import Kubelet
from demo.standins.pods import Container, Phase, Pod
from tests import few_rights, host_root
from tests.deploy import manifests
from tests.plugin.live_plugin import Plugin, until_files
from tests.plugin.scraping import get

ALONE = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"']
ISOLATES = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
GPU = "nvidia.com/gpu"

# It becomes another user when its interpreter is loaded, which may be in a home directory that only root can read.
TENANT = """
import ctypes, mmap, os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as after any exec, and not as after setuid
with open("/dev/zero", "r+b", 0) as device:
    kept = mmap.mmap(device.fileno(), 4096)
print(flush=True)
sys.stdin.read()
"""
LOOK = """
import os, sys
from scrubber.node.open_files import Search, Timer
try:
    print(sorted(Search({"gpu": ["/dev/zero"]}).held_by(f"/proc/{sys.argv[1]}", Timer())))
except PermissionError:
    print("blind")
try:
    os.kill(int(sys.argv[1]), 0)
except PermissionError:
    print("helpless")
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not ISOLATES, reason="takes root, and namespaces, to give them up")


@pytest.fixture
def tenant():
    """A process of another user that has a device mapped, and not open."""
    command = [sys.executable, "-c", TENANT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n", "the tenant does not run"
        yield process.pid
        process.communicate()


def look(pid, spared=()):
    before = few_rights.reduced(manifests.container("default", "scrubber"), spared)
    run = subprocess.run([*before, sys.executable, "-c", LOOK, str(pid)], capture_output=True, text=True, check=True)
    return run.stdout.split("\n")[:-1]


def test_four_capabilities_let_the_scrubber_end_foreign_processes(tenant):
    given = manifests.container("default", "scrubber")["securityContext"]["capabilities"]["add"]
    assert set(given) == few_rights.GIVEN
    assert look(tenant) == ["['gpu']"]


@pytest.mark.parametrize("spared", sorted(few_rights.NEEDED))
def test_without_three_capabilities_the_scrubber_reports_blindness(tenant, spared):
    assert look(tenant, [spared]) == ["blind"]


def test_without_the_fourth_capability_processes_stay(tenant):
    assert look(tenant, ["KILL"]) == ["['gpu']", "helpless"]


class Node:
    """The rendered pods for simulated GPUs, with the node's directories below one of the test."""

    def __init__(self, root: Path, alive: AsyncExitStack, **more: object) -> None:
        self.root, self._alive = root, alive
        (root / "kubelet").mkdir()
        (root / "run").mkdir(mode=0o755)  # as the kubelet makes what is missing
        (root / "run/cdi").mkdir()
        (root / "cdi").symlink_to("run/cdi")  # one directory of the node, mounted at two places
        (root / "policy").mkdir()
        values = {
            "backend": "simulated",
            "policy": {"inline": "name: first\n"},
            "directories": {"state": str(root / "state"), "run": str(root / "run")},
            "kubelet": {"devicePluginsDir": str(root / "kubelet"), "podLogsDir": str(root / "pods")},
            "scrubber": {"simulated": {"memory": "1MiB"}},
            **more,
        }
        self.objects = manifests.loaded(values)
        self.say("first")

    def say(self, name):
        """As the kubelet changes a ConfigMap: a new directory, and a link that is replaced."""
        (self.root / "policy" / f"..{name}").mkdir()
        (self.root / "policy" / f"..{name}" / "policy.yaml").write_text(f"name: {name}\n")
        (self.root / "policy" / "..data_tmp").symlink_to(f"..{name}")
        (self.root / "policy" / "..data_tmp").rename(self.root / "policy" / "..data")
        if not (self.root / "policy" / "policy.yaml").is_symlink():
            (self.root / "policy" / "policy.yaml").symlink_to("..data/policy.yaml")

    def command(self, name, spared=()):
        """What the container of this name runs, with the rights that it has but for what is spared."""
        one = manifests.container(self.objects, name)
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        words = manifests.words(one, {"/etc/autoclave/policy": self.root / "policy", "/host": self.root})
        for port in one.get("ports", ()):
            words = [word.replace(f"$(POD_IP):{port['containerPort']}", "127.0.0.1:0") for word in words]
        return [*ALONE, str(self.root), *few_rights.reduced(one, spared), sys.executable, "-m", "autoclave", *words]

    async def once(self, name, *spared):
        """The exit code of a container that ends."""
        return await (await self.start(name, *spared)).ended()

    async def start(self, name, *spared, **env):
        program = Plugin(self.root, **env)
        program.command = self.command(name, spared)
        await program.start()
        self._alive.push_async_callback(program.clear_away)
        return program


async def ready(program):
    """What the kubelet is told when it asks."""
    return (await get((await program.hear("showing metrics"))["address"], "/readyz"))[0] == 200


async def test_the_pods_of_the_chart_have_enough_rights(short_tmp):
    async with AsyncExitStack() as alive:
        node = Node(short_tmp, alive)
        kubelet = await alive.enter_async_context(Kubelet(short_tmp / "kubelet"))
        assert await node.once("doctor (scrubber)") == 0
        checks = await node.start("doctor (plugin)")  # waits for the CDI specification that the scrubber writes
        scrubber = await node.start("scrubber")
        assert await checks.ended() == 0
        plugin = await node.start("plugin")
        await kubelet.registered(GPU, within=20)
        await kubelet.until(lambda: "Healthy" in kubelet.devices(GPU).values(), within=20)
        await plugin.hear("registered")
        assert [await ready(scrubber), await ready(plugin)] == [True, True]
        pod = Pod("train", (Container("main", {GPU: 1}),))
        assert (await kubelet.run(pod)).phase is Phase.RUNNING
        assert await node.once("doctor (test)") == 0
        node.say("second")
        assert (await scrubber.hear("policy loaded"))["policy"] == "second"
        assert await plugin.stop() == 0
        assert await node.once("doctor (test)") == 1
        assert await scrubber.stop() == 0


async def test_the_driver_serves_with_the_rights_that_it_has(short_tmp):
    """Among the kubelet's plugins it may write to its own directory only. No API server answers."""
    plugins, registry = short_tmp / "plugins", short_tmp / "registry"
    (plugins / "gpu.autoclave.internal").mkdir(parents=True)
    registry.mkdir()
    plugins.chmod(0o555)
    nowhere = {"name": "a", "cluster": {"server": "https://127.0.0.1:1"}, "user": {}}
    context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    config = {
        "clusters": [nowhere],
        "users": [{"name": "a", "user": {}}],
        "contexts": [context],
        "current-context": "a",
    }
    (short_tmp / "kubeconfig").write_text(json.dumps(config))
    env = {"NODE_NAME": "node-1", "KUBECONFIG": str(short_tmp / "kubeconfig")}
    directories = {
        "devicePluginsDir": str(short_tmp / "kubelet"),
        "podLogsDir": str(short_tmp / "pods"),
        "pluginsDir": str(plugins),
        "registryDir": str(registry),
    }
    async with AsyncExitStack() as alive:
        node = Node(short_tmp, alive, dra={"enabled": True}, kubelet=directories)
        scrubber = await node.start("scrubber")
        assert await node.once("doctor (dra)") == 0
        driver = await node.start("dra", **env)
        await until_files(lambda: any(registry.glob("gpu.autoclave.internal-*-reg.sock")), registry)
        assert not await ready(driver)
        assert len([*(plugins / "gpu.autoclave.internal").glob("dra-*.sock")]) == 1
        assert await driver.stop() == 0
        assert await scrubber.stop() == 0


async def test_containers_wait_until_cdi_names_their_gpus(short_tmp):
    async with AsyncExitStack() as alive:
        node = Node(short_tmp, alive, plugin={"strategy": ["cdi-cri"]}, doctor={"wait": "1s"})
        assert await node.once("doctor (plugin)") == 1
        specification = short_tmp / "etc/cdi/nvidia.yaml"
        specification.parent.mkdir(parents=True)
        specification.write_text("kind: nvidia.com/gpu\ndevices: [{name: GPU-1}]\n")
        specification.rename(short_tmp / "run/cdi/nvidia.yaml")
        assert await node.once("doctor (plugin)") == 0


@host_root.takes_chroot
async def test_the_cdi_specification_is_written_with_the_right_to_chroot(short_tmp):
    places = {"directories": {"cdi": str(short_tmp / "etc/cdi"), "cdiDynamic": str(short_tmp / "run/cdi")}}
    kubelet = {"devicePluginsDir": str(short_tmp / "kubelet")}
    async with AsyncExitStack() as alive:
        node = Node(short_tmp, alive, backend="nvidia", cdi={"generate": True}, kubelet=kubelet, **places)
        host_root.HostRoot(short_tmp)
        checks = await node.start("doctor (plugin)")
        assert await node.once("write-cdi (scrubber)", "SYS_ADMIN", "SYS_CHROOT") == 1
        assert await node.once("write-cdi (scrubber)", "SYS_ADMIN") == 0  # NVIDIA's runtime asks for the other one
        assert await checks.ended() == 0
