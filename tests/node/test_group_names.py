"""A process is told to its pod by its control groups, and what a tenant writes there changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.node.group_names import place

U = "0aa1e0d4-11aa-4b3c-9d3e-5f6a7b8c9d0e"
V = "ffffffff-11aa-4b3c-9d3e-5f6a7b8c9d0e"
U_, V_ = U.replace("-", "_"), V.replace("-", "_")
DIGEST = "0123456789abcdef" * 2  # the UID of a static pod
H, INNER = "a1" * 32, "b2" * 32
OUTSIDE = f"container:{H[:12]}"
SLICES = "/kubepods.slice/kubepods-burstable.slice"
OURS = f"{SLICES}/kubepods-burstable-pod{U_}.slice"

LAYOUTS = {
    f"11:memory:/kubepods/burstable/pod{U}/{H}": U,
    f"12:devices:/kubepods/pod{U}/{H}": U,
    f"0::{OURS}/cri-containerd-{H}.scope": U,
    f"0::/kubepods.slice/kubepods-pod{U_}.slice/crio-{H}.scope/container": U,
    f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{U_}.slice/docker-{H}.scope": U,
    f"0::/../../../kubepods-burstable-pod{U_}.slice/cri-containerd-{H}.scope": U,
    f"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod{U_}.slice:cri-containerd:{H}": U,
    f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
    f"kubelet-kubepods-burstable-pod{U_}.slice/cri-containerd-{H}.scope": U,
    f"1:name=systemd:/system.slice/k3s.service/kubepods-pod{U_}.slice:cri-containerd:{H}": U,
    f"0::/kubelet/kubepods/burstable/pod{U}/{H}": U,  # kind with the driver cgroupfs
    f"0::/k3s/kubepods/pod{U}/{H}": U,
    f"0::/../../kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{U_}.slice/cri-containerd-{H}.scope": U,
    f"0::/kubepods/burstable/pod{DIGEST}/{H}": DIGEST,
    f"0::{OURS}/crio-conmon-{H}.scope": U,  # watches a container, and is in none
    f"0::{OURS}/cri-containerd-{H}.scope/docker/{INNER}": U,
    f"0::{OURS}/cri-containerd-{H}.scope/init/nested": U,
    f"0::{OURS}": U,
    f"0::{OURS}/cri-containerd-{H}.scope (deleted)": U,
    f"0::/../../pod{U}/{H}": U,
    f"0::/../../../besteffort/pod{U}/{H}": U,
    f"0::/../cri-containerd-{H}.scope": OUTSIDE,  # of our own pod, seen from within our container
    f"0::/machine.slice/libpod-{H}.scope/container": OUTSIDE,
    f"0::/machine.slice/libpod-conmon-{H}.scope": None,
    f"0::/system.slice/docker-{H}.scope": OUTSIDE,
    f"4:cpu:/docker/{H}": OUTSIDE,
    f"0::/system.slice/some-new-runtime-{H}.scope": OUTSIDE,
    "0::/system.slice/kubelet.service": None,
    "0::/init.scope": None,
    "0::/": None,
}
FORGED = {
    "a pod below one's own container": (f"0::{OURS}/cri-containerd-{H}.scope/kubepods-pod{V_}.slice/{INNER}", U),
    "a pod as the kubelet would make it": (f"4:cpu:/kubepods/pod{U}/{H}/kubepods/burstable/pod{V}/{INNER}", U),
    "a pod below a container of no pod": (f"0::/docker/{H}/kubepods/pod{V}/{INNER}", OUTSIDE),
    "a container of no pod as another": (f"0::/docker/{H}/docker/{INNER}", OUTSIDE),
    "a pod from a second container of our own pod": (f"0::/../{H}/../../pod{V}", OUTSIDE),
    "a pod below a user's session": (f"0::/user.slice/user-1.slice/user@1.service/kubepods/pod{V}", None),
    "a slice below a delegated service": (f"0::/system.slice/runner.service/kubepods-pod{V_}.slice", None),
    "a slice below a delegated scope": (f"0::/system.slice/a.scope/x.slice/kubepods-pod{V_}.slice/{H}", OUTSIDE),
    "a slice as a runtime would make it": (
        f"0::/system.slice/run-u7.service/kubepods-pod{V_}.slice:cri-containerd:{H}",
        OUTSIDE,
    ),
    "a slice below a runtime's service": (f"0::/system.slice/containerd.service/kubepods-pod{V_}.slice", None),
    "a group below a delegated service": (f"0::/system.slice/runner.service/kubepods/burstable/pod{V}", None),
    "a slice below another group": (f"0::/app/kubepods-pod{V_}.slice", None),
    "a pod of LXC": (f"0::/lxc.payload.a/kubepods/pod{V}", None),
    "a pod of LXC, before": (f"4:cpu:/lxc/a/kubepods/pod{V}", None),
    "a pod of systemd-nspawn": (f"0::/machine.slice/machine-a.scope/payload/kubepods/pod{V}", None),
    "a pod outside the kubelet's groups": (f"0::/app/pod{V}", None),
    "a longer name": (f"0::/kubepods/pod{V}0/x", None),
    "a name that ends a line for some": (f"0::/x\u20280::/kubepods/pod{V}\x0b0::/docker/{H}/", OUTSIDE),
}


@pytest.mark.parametrize("line", LAYOUTS)
def test_every_layout_is_read(line: str) -> None:
    assert place(f"{line}\n") == LAYOUTS[line]


@pytest.mark.parametrize("case", FORGED)
def test_a_tenant_cannot_change_the_owner_by_naming_cgroups(case: str) -> None:
    line, name = FORGED[case]
    assert place(line) == name


def test_on_the_first_version_any_hierarchy_tells() -> None:
    assert place(f"12:devices:/\n4:cpu:/kubepods/pod{U}\n2:memory:/kubepods/pod{U}/{H}\n0::/\n") == U


WORDS = st.sampled_from(
    ["/", ":", "kubepods", "-", "pod", U, V_, DIGEST, H, ".slice", ".scope", "..", "\n", "user.slice"]
)
PIECES = st.lists(WORDS | st.text(max_size=4), max_size=12).map("".join)


@given(PIECES)
def test_no_line_makes_the_parser_fail(text: str) -> None:
    name = place(text)
    assert name is None or name.startswith("container:") or name in text.replace("_", "-")


@given(
    st.sampled_from([(f"{OURS}/cri-containerd-{H}.scope", U), (f"/docker/{H}", OUTSIDE)]),
    PIECES.map(lambda text: text.replace("\n", "")),
)
def test_groups_below_a_container_belong_to_it(outer, text: str) -> None:
    group, name = outer
    assert place(f"0::{group}/{text}") == name
