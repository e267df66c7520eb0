"""Which GPUs a CDI specification of a vendor gives to a container."""

import json

import pytest

from ground.errors import InvalidRequest
from plugin.devices import Device
from plugin.vendor import cdi_edits

CDI_ID = "k8s.gpu.nvidia.com/claim=uid-gpu-0"


def device(number):
    return Device(
        f"GPU-000{number}", healthy=True, clean=True, numa_node=0, resource="nvidia.com/gpu",
        pci_address=f"00000000:1{number}:00.0", nodes=(f"/dev/nvidia{number}",),
    )  # fmt: skip


TAKEN, OTHER = device(0), device(1)


def edits(**more):
    """As NVIDIA's driver writes them for one GPU."""
    link = "../card0::/dev/dri/by-path/pci-0000:10:00.0-card"
    hook = {
        "hookName": "createContainer",
        "path": "/hook",
        "args": ["nvidia-cdi-hook", "create-symlinks", "--link", link],
    }
    nodes = [{"path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia0"}, {"path": "/dev/nvidiactl"}]
    return {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": nodes, "hooks": [hook], **more}


@pytest.mark.parametrize("path", ["/s/gpu1/memory", "/s/gpu0/memory/", "/s/gpu0/../gpu1/memory", "/s/gpu0/events"])
def test_the_files_of_another_simulated_gpu_are_refused(tmp_path, path):
    specify(tmp_path, containerEdits=edits(mounts=[{"hostPath": path}]))
    with pytest.raises(InvalidRequest, match="which is not a file of"):
        check(tmp_path)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, ""),
        ({"env": ["NVIDIA_VISIBLE_DEVICES=GPU-0000"]}, ""),
        ({"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, "NVIDIA_VISIBLE_DEVICES=all"),
        ({"env": ["NVIDIA_VISIBLE_DEVICES=1"]}, "NVIDIA_VISIBLE_DEVICES=1"),
        ({"env": ["GPU=gpu-0001"]}, "gpu-0001"),
        ({"env": ["X=/dev//nvidia1"]}, "/dev/nvidia1"),
        ({"env": ["X=/dev/dri/by-path/../../nvidia1"]}, "/dev/nvidia1"),
        ({"deviceNodes": [{"path": "/dev/nvidia10"}]}, "/dev/nvidia10"),
        ({"deviceNodes": [{"path": "/dev/nvidia-caps/nvidia-cap12"}]}, "/dev/nvidia-caps/nvidia-cap12"),
        ({"deviceNodes": [{"path": "/dev/nvidia-uvm-tools"}, {"path": "/dev/nvidia-modeset"}]}, ""),
        ({"mounts": [{"hostPath": "/dev/nvidia1", "containerPath": "/gpu"}]}, "/dev/nvidia1"),
        ({"mounts": [{"hostPath": "/var/lib/kubelet/plugins/gpu.nvidia.com/mps/1/shm"}]}, ""),
        ({"mounts": [{"hostPath": "/var/lib/autoclave/simulated/gpu0/memory"}]}, ""),
        ({"hooks": [{"args": ["../card1::/dev/dri/by-path/pci-0000:11:00.0-card"]}]}, "0000:11:00.0"),
    ],
)
def test_the_first_thing_of_another_gpu_is_found(tmp_path, more, found):
    specify(tmp_path, containerEdits=edits(**more))
    if not found:
        check(tmp_path)
        return
    with pytest.raises(InvalidRequest, match=f"of the answer names {found}, which was not granted"):
        check(tmp_path)


def test_a_number_counts_in_any_spelling_of_its_key(tmp_path):
    specify(tmp_path, containerEdits={"deviceNodes": [{"Path": "/dev/nvidia0", "Major": 195, "MINOR": 1}]})
    with pytest.raises(InvalidRequest, match="names /dev/nvidia0 with the number 195:1"):
        check(tmp_path)


def test_a_missing_number_means_the_first_gpu(tmp_path):
    specify(tmp_path, containerEdits={"deviceNodes": [{"path": "/dev/nvidia0", "major": 195}]})
    check(tmp_path)
    specify(tmp_path, containerEdits={"deviceNodes": [{"path": "/dev/nvidia1", "major": 195}]})
    with pytest.raises(InvalidRequest, match="names /dev/nvidia1 with the number 195:0"):
        cdi_edits.check([CDI_ID], [tmp_path], [TAKEN, OTHER], [TAKEN, OTHER])


def specify(folder, file="claim.yaml", name="uid-gpu-0", **more):
    document = {"kind": "k8s.gpu.nvidia.com/claim", "devices": [{"name": name, "containerEdits": edits()}], **more}
    (folder / file).write_text(json.dumps(document))  # YAML, too


def check(*folders):
    cdi_edits.check([CDI_ID], folders, [TAKEN], [TAKEN, OTHER])


@pytest.mark.parametrize("file", ["claim.yaml", "claim.json"])
def test_a_specification_that_gives_the_gpu_of_the_claim_passes(tmp_path, file):
    specify(tmp_path, "nvidia.yaml", kind="nvidia.com/gpu", containerEdits={"env": ["NVIDIA_VISIBLE_DEVICES=all"]})
    specify(tmp_path, file)
    check(tmp_path, tmp_path / "absent")


def test_edits_for_all_devices_of_a_specification_count(tmp_path):
    specify(tmp_path, containerEdits={"env": ["NVIDIA_VISIBLE_DEVICES=all"]})
    with pytest.raises(InvalidRequest, match="NVIDIA_VISIBLE_DEVICES=all, which was not granted"):
        check(tmp_path)


def test_every_directory_counts(tmp_path):
    """Which of two specifications a container runtime takes depends on its configuration."""
    (tmp_path / "second").mkdir()
    specify(tmp_path)
    specify(tmp_path / "second", containerEdits={"deviceNodes": [{"path": "/dev/nvidia1"}]})
    with pytest.raises(InvalidRequest, match="/dev/nvidia1"):
        check(tmp_path, tmp_path / "second")


OTHERS_NODE = {"deviceNodes": [{"path": "/dev/nvidia1"}]}


@pytest.mark.parametrize(
    ("file", "written", "hidden"),
    [
        ("a.json", '"devices"', '"Devices"'),
        ("a.yaml", '"kind"', '"KIND"'),
        ("a.json", "uid-gpu-0", r"uid-gpu-\u0030"),
        ("a.yaml", '"uid-gpu-0"', r'"uid-gpu-\x30"'),
    ],
)
def test_a_device_that_a_runtime_reads_otherwise_written_counts(tmp_path, file, written, hidden):
    specify(tmp_path)
    specify(tmp_path, file, containerEdits=OTHERS_NODE)
    text = (tmp_path / file).read_text()
    assert written in text
    (tmp_path / file).write_text(text.replace(written, hidden))
    with pytest.raises(InvalidRequest, match="/dev/nvidia1"):
        check(tmp_path)


@pytest.mark.parametrize("name", ["!!binary dWlkLWdwdS0w", "7"])
def test_a_name_that_is_no_plain_text_is_refused(tmp_path, name):
    specify(tmp_path)
    (tmp_path / "a.yaml").write_text(f"kind: k8s.gpu.nvidia.com/claim\n# !\ndevices: [{{name: {name}}}]\n")
    with pytest.raises(InvalidRequest, match=r"cannot read the CDI specification a\.yaml: TypeError"):
        check(tmp_path)


@pytest.mark.parametrize("key", ["containerEdits", "ContainerEdits"])
@pytest.mark.parametrize("file", ["a.json", "a.yaml"])
def test_a_key_that_stands_twice_is_refused(tmp_path, file, key):
    """A container runtime may merge both."""
    specify(tmp_path, file, first=OTHERS_NODE, containerEdits=edits())
    (tmp_path / file).write_text((tmp_path / file).read_text().replace("first", key))
    with pytest.raises(InvalidRequest, match=f"cannot read the CDI specification {file}: ValueError"):
        check(tmp_path)


@pytest.mark.parametrize("text", ["", "devices: [", "uid-gpu-0", "{kind: [uid-gpu-0]}", "[uid-gpu-0, {]"])
def test_a_specification_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / "claim.yaml").write_text(text)
    with pytest.raises(InvalidRequest, match=r"cannot read|no CDI specification"):
        check(tmp_path)
