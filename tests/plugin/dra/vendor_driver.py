"""A vendor's DRA driver as Autoclave meets it: two sockets, CDI specifications, and an unknown field."""

import json
from pathlib import Path

import grpc.aio

from demo.standins.do_nothing_driver import POOL, DoNothingDriver
from plugin.kubelet_api import dra_pb2 as wire

UNKNOWN_FIELD = b"\xba\x3e\x05later"  # number 999: this driver is newer than Autoclave


class VendorDriver(DoNothingDriver):
    """One process of it."""

    def __init__(self, registry: Path, plugins: Path, cdi: Path, name: str = "gpu.nvidia.com") -> None:
        self.service = plugins / name / "dra.sock"
        self.service.parent.mkdir(exist_ok=True)
        super().__init__(name, registry / f"{name}-reg.sock", self.service)
        self.versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        self.cdi = cdi
        self.gives: dict[str, list[str]] = {}  # by claim: the UUIDs of what a container gets

    async def prepared(self, claim):
        visible = f"NVIDIA_VISIBLE_DEVICES={','.join(self.gives[claim.uid])}"  # simulated GPUs have no nodes
        device = {"name": f"{claim.uid}-gpu", "containerEdits": {"env": [visible]}}
        document = {"cdiVersion": "0.6.0", "kind": "k8s.gpu.nvidia.com/claim", "devices": [device]}
        (self.cdi / f"claim_{claim.uid}.json").write_text(json.dumps(document))
        answer = wire.NodePrepareResourceResponse()
        cdi_id = f"k8s.gpu.nvidia.com/claim={claim.uid}-gpu"
        answer.devices.add(pool_name=POOL, device_name="gpu-0", cdi_device_ids=[cdi_id])
        return wire.NodePrepareResourceResponse.FromString(answer.SerializeToString() + UNKNOWN_FIELD)

    async def NotifyRegistrationStatus(self, request, context):  # noqa: N802 - the proto names it
        answer = await super().NotifyRegistrationStatus(request, context)
        if not request.plugin_registered:
            await context.abort(grpc.StatusCode.UNKNOWN, "failed registration process")
        return answer
