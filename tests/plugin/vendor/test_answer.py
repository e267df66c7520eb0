"""Which answers of a vendor's plugin give a container the granted GPUs, and nothing else.

``nvidia_answers.json`` has what NVIDIA's plugin 0.19.0 has answered and written, with two GPUs and its driver below
/run/nvidia/driver.
"""

import json
import os
from pathlib import Path

import pytest

from ground.errors import Refused
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.vendor import answer, device_nodes
from scrub_api.device_messages import ReportedDevice

RECORDED = json.loads(Path(__file__).with_name("nvidia_answers.json").read_text())
KIND = "k8s.device-plugin.nvidia.com"
CAPS = "/dev/nvidia-caps/nvidia-cap"
DRIVERS = """Character devices:
  1 mem
 10 misc
195 nvidia
226 drm
231 infiniband_verbs
504 gdrdrv
505 nvidia-fs
506 nvidia-caps-imex-channels
507 nvidia-uvm
508 nvidia-caps

Block devices:
259 nvidia-uvm
"""


def gpu(number, uuid, *more, mig=False):
    about = {"index": number, "mig": mig, "nodes": (f"/dev/nvidia{number}", *more)}
    about["pci_address"] = f"00000000:{number + 1}B:00.0"
    return ReportedDevice(uuid, healthy=True, clean=True, numa_node=0, resource="nvidia.com/gpu", **about)


GRANTED, OTHER = (gpu(number, uuid) for number, uuid in enumerate(RECORDED["devices"]))
SLICE = gpu(1, "MIG-1", f"{CAPS}12", f"{CAPS}13", mig=True)
NODE = [GRANTED, OTHER, SLICE]


@pytest.fixture(autouse=True)
def cdi_dir(tmp_path, monkeypatch):
    """A node with NVIDIA's drivers and with the specifications of its plugin; tests add devices to ``more.json``."""
    (tmp_path / "devices").write_text(DRIVERS)
    for device, numbers in ((GRANTED, "0"), (OTHER, "1")):
        for name in (f"card{numbers}", f"renderD12{8 + int(numbers)}"):
            (tmp_path / f"pci/0000:{device.index + 1}b:00.0/drm/{name}").mkdir(parents=True)
    monkeypatch.setattr(device_nodes, "DRIVERS", tmp_path / "devices")
    monkeypatch.setattr(device_nodes, "PCI", tmp_path / "pci")
    folder = tmp_path / "cdi"
    folder.mkdir()
    for files in RECORDED["specifications"].values():
        for name, document in files.items():
            kind = document["kind"].partition("/")[2]
            (folder / f"{document['devices'][0]['name']}-{kind}-{name}").write_text(json.dumps(document))
    return folder


def check(response, granted, folder, variables=()):
    whole = wire.AllocateResponse(container_responses=[wire.ContainerAllocateResponse(**response)])
    return answer.check(whole, [granted], NODE, [folder], variables)


@pytest.mark.parametrize("recorded", RECORDED["answers"], ids=lambda it: f"{it['strategy']} {it['ids']}")
def test_each_answer_of_nvidias_plugin_passes(recorded, cdi_dir):
    check(recorded["answer"], [GRANTED], cdi_dir)
    with pytest.raises(Refused, match=r"which was not granted|which is no GPU"):
        check(recorded["answer"], [OTHER], cdi_dir)


def variable(value, **more):
    return {"envs": {"NVIDIA_VISIBLE_DEVICES": value, **more}}


RIGHT = variable(GRANTED.uuid)


def node(path, host=None, permissions="rw"):
    return {"devices": [{"container_path": path, "host_path": host or path, "permissions": permissions}]}


def mount(container, host="/dev/null"):
    return {"mounts": [{"container_path": container, "host_path": host}]}


def named(*names):
    return {"cdi_devices": [{"name": f"{KIND}/{name}"} for name in names]}


def described(folder, name="gpu=mine", **edits):
    """Another specification of the node, with one device; returns the answer that names it."""
    kind, _, device = name.partition("=")
    document = {"kind": f"{KIND}/{kind}", "devices": [{"name": device, "containerEdits": edits}]}
    (folder / "more.json").write_text(json.dumps(document))
    return named(name)


@pytest.mark.parametrize(
    ("granted", "more"),
    [
        ([GRANTED], variable("void", NVIDIA_IMEX_CHANNELS="0,1") | node("/dev/nvidia0")),
        ([GRANTED], RIGHT | node("/dev/nvidia-uvm-tools", "/run/nvidia/driver/dev/nvidia-uvm-tools")),
        ([GRANTED], RIGHT | node("/dev/nvidia-caps-imex-channels/channel0")),
        ([GRANTED], RIGHT | mount("/var/run/nvidia-container-devices/imex/0")),
        ([GRANTED, OTHER], variable(f"{GRANTED.uuid},{OTHER.uuid}")),
        ([GRANTED], {"annotations": {"nvidia.cdi.k8s.io/nvidia-device-plugin_1": f"{KIND}/gpu=0"}}),
        ([SLICE], variable("MIG-1")),
        ([SLICE], mount("/var/run/nvidia-container-devices/MIG-1")),
    ],
)
def test_other_forms_of_nvidias_plugin_pass(granted, more, cdi_dir):
    check(more, granted, cdi_dir)


@pytest.mark.parametrize(
    ("granted", "edits"),
    [
        ([SLICE], {"deviceNodes": [{"path": path} for path in SLICE.nodes]}),
        ([SLICE], {"deviceNodes": [{"path": "/dev/nvidia1", "major": 195, "minor": 1},
                                   {"path": f"{CAPS}12", "major": 508, "minor": 12, "type": "c"},
                                   {"path": f"{CAPS}13", "major": 508, "minor": 13}]}),
        ([GRANTED], {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/dri/card0", "major": 226},
                                     {"path": "/dev/dri/renderD128", "major": 226, "minor": 128}],
                     "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args":
                                ["nvidia-ctk", "hook", "create-symlinks", "--link",
                                 "../card0::/dev/dri/by-path/pci-0000:1b:00.0-card"]}],
                     "additionalGids": [44]}),
        ([GRANTED], {"deviceNodes": [{"path": "/dev/nvidia0"},
                                     {"path": "/dev/nvidia-caps-imex-channels/channel3", "major": 506, "minor": 3}],
                     "mounts": [{"hostPath": path, "containerPath": path} for path in (
                         "/usr/lib/xorg/modules/drivers/nvidia_drv.so", "/usr/share/nvidia/nvoptix.bin",
                         "/opt/nvidia/vulkan/icd.d/nvidia_icd.json", "/tmp/nvidia-mps",
                         "/nix/store/x/lib/libcuda.so.580.95.05", "/usr/bin/nvidia-cuda-mps-control",
                         "/usr/share/X11/xorg.conf.d/10-nvidia.conf", "/run/nvidia-fabricmanager/socket")]}),
        ([SLICE], {"deviceNodes": [{"path": path} for path in (*SLICE.nodes, "/dev/dri/renderD129")]}),
        ([GRANTED], {"deviceNodes": [{"path": "/dev/nvidia0"}],  # since v0.20 of the plugin
                     "env": ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu:/usr/lib/i386-linux-gnu"],
                     "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args":
                                ["nvidia-cdi-hook", "update-application-profile"]}],
                     "mounts": [{"hostPath": path, "containerPath": path} for path in (
                         "/etc/OpenCL/vendors/nvidia.icd", "/usr/lib/libnvidia-nvvm70.so.4")]}),
    ],
    ids=["a slice", "a slice by number", "graphics", "files of the driver", "a slice with graphics", "v0.20"],
)  # fmt: skip
def test_other_specifications_of_nvidias_programs_pass(granted, edits, cdi_dir):
    check(described(cdi_dir, **edits), granted, cdi_dir)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        *((node(path), "names the device node") for path in (
            "/dev", "/", "/dev/char/195:1", "/dev/dri/renderD129", "/dev/nvidia-caps", "/dev/nvidia1", "/dev/mem", "",
            "/dev//nvidia0", "/dev/nvidia0/", "dev/nvidia0", f"{CAPS}12", "/dev/nvidia-nvswitch0", "/dev/sda")),
        *((node("/dev/nvidia0", host), "which is not the same path") for host in (
            "/dev/nvidia1", "/dev/char/195:1", "/dev/../dev/nvidia0", "//dev/nvidia0", "/proc/1/root/dev/nvidia0",
            "x/dev/nvidia0", "/dev", "/x\0/dev/nvidia0")),
        (node("/dev/nvidia0", f"{'/x' * 4096}/dev/nvidia0"), "with the number none"),
        (node("/dev/nvidia0", permissions="rwm"), "the permissions 'rwm'"),
        *((mount(path), f"mounts '/dev/null' at '{path}'") for path in (
            "//var/run/nvidia-container-devices/all", "/var/run/nvidia-container-devices", "/etc/ld.so.preload",
            "/var/run/nvidia-container-devices/x/all", "var/run/nvidia-container-devices/all")),
        (mount("/var/run/nvidia-container-devices/all"), "'all', which is no GPU"),
        (mount("/var/run/nvidia-container-devices/1"), "which was not granted"),
        (mount("/var/run/nvidia-container-devices/imex/all"), "the IMEX channel 'all'"),
        *((mount(f"/var/run/nvidia-container-devices/{GRANTED.uuid}", host), f"mounts '{host}'") for host in (
            "/proc/1/root", "/run/autoclave", "/etc/cdi", "/dev", "/")),
        *((mount("/x", host), f"mounts '{host}'") for host in (
            "/proc/1/root", "/run/autoclave", "/etc/cdi", "/var/lib/autoclave/receipts/0123")),
        *(({"annotations": {key: "x"}}, f"sets the annotation '{key}'") for key in (
            "io.kubernetes.cri-o.Labels", "io.kubernetes.cri.sandbox-uid", "cdi.k8s.io/other", "")),
        ({"annotations": {"cdi.k8s.io/nvidia-device-plugin_1": f"{KIND}/gpu=0,{KIND}/gpu=1"}}, "/dev/nvidia1"),
        ({"annotations": {"nvidia.cdi.k8s.io/nvidia-device-plugin_1": f"{KIND}/gpu=1"}}, "/dev/nvidia1"),
        *((variable(value), "which") for value in ("all", "0,1", OTHER.uuid, f"{GRANTED.uuid},{OTHER.uuid}", " 0")),
        *((RIGHT["envs"] and {"envs": RIGHT["envs"] | {name: value}}, f"sets the variable {name}") for name, value in (
            ("OTHER", OTHER.uuid), ("OTHER", "/dev/nvidia1"), ("OTHER", "0000:2b:00.0"), ("", "x"), ("A B", "x"),
            ("LD_PRELOAD", "/x.so"), ("NVIDIA_MIG_CONFIG_DEVICES", "all"), ("MELLANOX_VISIBLE_DEVICES", "all"),
            ("NVIDIA_IMEX_CHANNELS", "all"), ("NVIDIA_GDS", "/dev/nvidia1"),
            ("LD_AUDIT", "/x.so"), ("CUDA_MPS_PIPE_DIRECTORY", "/mps"))),
        *((named(name), "names the CDI device") for name in ("gpu=a/b", "gpu", "nvswitch=all", "gpu=", "gpu=0\n")),
        ({"cdi_devices": [{"name": "management.nvidia.com/gpu=all"}]}, "names the CDI device"),
        (named("gpu=7"), "no CDI specification of this node has the device"),
        (named(f"gpu={OTHER.uuid}"), "which was not granted"),
        ({"mounts": mount("/var/run/nvidia-container-devices/0")["mounts"] * 1025}, "1025 parts of one kind"),
    ],
)  # fmt: skip
def test_an_answer_of_another_form_is_refused(more, why, cdi_dir):
    with pytest.raises(Refused, match=r"^the answer of the vendor's plugin is refused: ") as refused:
        check(RIGHT | more, [GRANTED], cdi_dir)
    assert why in str(refused.value)


def test_a_variable_that_names_no_other_gpu_passes(cdi_dir):
    envs = RIGHT["envs"] | {"FROM_VENDOR": "1", "OWN": GRANTED.uuid, "NVIDIA_GDS": "enabled"}
    assert check(RIGHT | {"envs": envs}, [GRANTED], cdi_dir) == {"FROM_VENDOR", "OWN"}
    assert check(RIGHT, [GRANTED], cdi_dir) == frozenset()


def test_the_vendor_may_choose_what_its_containers_run(cdi_dir):
    """A list of names is no boundary: too many programs take code from a variable."""
    envs = dict.fromkeys(("PATH", "BASH_ENV", "PYTHONPATH", "GCONV_PATH", "NODE_OPTIONS", "AUTOCLAVE_RECEIPTS"), "/x")
    assert check(RIGHT | {"envs": RIGHT["envs"] | envs}, [GRANTED], cdi_dir) == envs.keys()


@pytest.mark.parametrize(("name", "value"), [("NVIDIA_NEW", "1"), ("OTHER", OTHER.uuid)])
def test_a_variable_that_is_refused_can_be_allowed_by_name(cdi_dir, name, value):
    envs = {"envs": RIGHT["envs"] | {name: value}}
    with pytest.raises(Refused, match=f"; to let it pass, set --vendor-variable {name}; "):
        check(RIGHT | envs, [GRANTED], cdi_dir)
    assert check(RIGHT | envs, [GRANTED], cdi_dir, variables=[name]) == {name}


def test_no_setting_lets_the_variable_name_other_gpus(cdi_dir):
    other = {"envs": {"NVIDIA_VISIBLE_DEVICES": OTHER.uuid}}
    with pytest.raises(Refused, match="which was not granted"):
        check(RIGHT | other, [GRANTED], cdi_dir, variables=["NVIDIA_VISIBLE_DEVICES"])


MINE = {"path": "/dev/nvidia0"}


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ({"deviceNodes": [MINE, {"path": "/dev/mine", "major": 195, "minor": 1}]}, "the device node '/dev/mine'"),
        ({"deviceNodes": [{"path": "/dev/nvidia0", "major": 195, "minor": 1}]}, "with the number 195:1"),
        ({"deviceNodes": [MINE, {"path": "/dev/nvidiactl", "major": 195, "minor": 1}]}, "with the number 195:1"),
        ({"deviceNodes": [MINE, {"path": "/dev/nvidia-uvm", "major": 195}]}, "with the number 195:0"),
        ({"deviceNodes": [MINE, {"path": "/dev/nvidia-uvm", "major": 259}]}, "with the number 259:0"),
        ({"deviceNodes": [MINE, {"path": "/dev/gdrdrv", "major": 1, "minor": 1}]}, "with the number 1:1"),
        ({"deviceNodes": [MINE, {"path": "/dev/nvidia-fs0", "major": 195, "minor": 1}]}, "with the number 195:1"),
        ({"deviceNodes": [MINE, {"path": "/dev/dri/renderD128", "major": 226, "minor": 129}]}, "the number 226:129"),
        ({"deviceNodes": [MINE, {"path": "/dev/dri/renderD129"}]}, "the device node '/dev/dri/renderD129'"),
        ({"deviceNodes": [MINE, {"path": "/dev/dri/../dri/renderD128"}]}, "the device node"),
        ({"deviceNodes": [MINE, {"path": f"{CAPS}12"}]}, f"{CAPS}12"),
        ({"deviceNodes": [{"path": "/dev/nvidia0", "type": "b"}]}, "with the type 'b'"),
        ({"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/char/195:1"}]}, "not the same path"),
        ({"deviceNodes": [MINE], "mounts": [{"hostPath": "/etc/cdi", "containerPath": "/x"}]}, "mounts '/etc/cdi'"),
        ({"deviceNodes": [MINE], "mounts": [{"hostPath": "/x/../proc/1/root/libx.so"}]}, "mounts '/x/../proc"),
        ({"deviceNodes": [MINE], "mounts": [{"hostPath": "/proc/1/root/libx.so"}]}, "mounts '/proc/1"),
        ({"deviceNodes": [MINE], "netDevices": [{"hostInterfaceName": "eth0"}]}, "cannot read the CDI specification"),
        ({"deviceNodes": [MINE], "env": [{}]}, "cannot read the CDI specification"),
        ({"deviceNodes": [MINE], "hooks": [{"args": [["/dev/nvidia1"]]}]}, "cannot read the CDI specification"),
        ({"deviceNodes": MINE}, "cannot read the CDI specification"),
        ({"deviceNodes": [{"path": "/dev/nvidiactl"}]}, f"does not name {GRANTED.uuid}"),
        ({"deviceNodes": [MINE], "env": ["X=" + "/a/.." * 50_000]}, "a text of 250002 characters"),
        ({"deviceNodes": [MINE], "env": ["x" * 4096] * 300}, "larger than 1048576 bytes"),
    ],
)
def test_a_specification_of_another_form_is_refused(edits, why, cdi_dir):
    with pytest.raises(Refused) as refused:
        check(described(cdi_dir, **edits), [GRANTED], cdi_dir)
    assert why in str(refused.value)


@pytest.mark.parametrize("in_pod", [False, True], ids=["on the host", "in a pod"])
@pytest.mark.parametrize("way", ["deviceNodes", "devices"])
def test_a_link_to_another_device_is_refused(way, in_pod, cdi_dir, tmp_path, monkeypatch):
    """Container runtimes follow links. Here the link leads to /dev/null."""
    monkeypatch.setattr(device_nodes, "HOSTS", (tmp_path / "empty", tmp_path if in_pod else Path("/")))
    host = "/dev/nvidia0" if in_pod else f"{tmp_path}/dev/nvidia0"
    answers = {
        "deviceNodes": described(cdi_dir, deviceNodes=[MINE | {"hostPath": host}]),
        "devices": node("/dev/nvidia0", host),
    }
    check(answers[way], [GRANTED], cdi_dir)  # the plugin does not see the path
    link = tmp_path / "dev/nvidia0"
    link.parent.mkdir()
    for leads_to, number in ((os.devnull, "1:3"), (tmp_path / "absent", "none"), (tmp_path, "none")):
        link.unlink(missing_ok=True)
        link.symlink_to(leads_to)
        with pytest.raises(Refused, match=f"/dev/nvidia0 with the number {number}, which is not its own"):
            check(answers[way], [GRANTED], cdi_dir)


def test_each_container_gets_its_own_answer(cdi_dir):
    responses = [wire.ContainerAllocateResponse(**variable(device.uuid)) for device in (OTHER, GRANTED)]
    swapped = wire.AllocateResponse(container_responses=responses)
    with pytest.raises(Refused, match="which was not granted"):
        answer.check(swapped, [[GRANTED], [OTHER]], NODE, [cdi_dir])
    with pytest.raises(Refused, match="for 2 containers, and the request has 1"):
        answer.check(swapped, [[GRANTED, OTHER]], NODE, [cdi_dir])
