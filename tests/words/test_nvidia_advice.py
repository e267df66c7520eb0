"""The advice on programs that keep a GPU open."""

import pytest

from scrubber.core.model import Holder
from scrubber.words import nvidia_advice

LABEL = "kubectl label node NODE --overwrite nvidia.com/gpu.deploy."


@pytest.mark.parametrize(
    ("command", "container", "word"),
    [
        ("dcgm-exporter", "pod-1", f"{LABEL}dcgm-exporter=false"),
        ("nvidia-device-p", "pod-1", f"{LABEL}device-plugin=false"),  # as the kernel shows it
        ("nv-hostengine", "pod-1", f"{LABEL}dcgm=false"),
        ("nv-hostengine", None, "systemctl stop nvidia-dcgm"),
        ("gpu-kubelet-plu", "pod-1", f"{LABEL}dra-driver=false"),
    ],
)
def test_a_known_program_is_named_with_its_command(command, container, word):
    assert word in nvidia_advice.how_to_stop([Holder(7, 1.0, command, container)])


def test_any_other_program_is_only_to_be_stopped():
    assert nvidia_advice.how_to_stop([Holder(7, 1.0, "train", "pod-1")]) == "stop that first"
    assert nvidia_advice.how_to_stop([Holder(7, 1.0, "dcgm-exporter", None)]) == "stop that first"


def test_each_command_is_said_once():
    two = [Holder(pid, 1.0, "dcgm-exporter", "pod-1") for pid in (7, 8)]
    assert nvidia_advice.how_to_stop(two).count("kubectl") == 1
