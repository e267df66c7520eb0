"""A DRA driver that does nothing: what the language costs. It reads each claim, as every DRA driver must, and says yes.

python -m benchmarks.dra_floor --socket PATH --kubeconfig FILE --driver NAME
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from plugin.cluster.credentials import File
from plugin.dra import apiserver, claims
from plugin.kubelet_api import dra_pb2 as pb
from plugin.kubelet_api import dra_pb2_grpc as wire

Context = grpc.aio.ServicerContext[Any, Any]
Prepared = pb.NodePrepareResourcesResponse
Unprepared = pb.NodeUnprepareResourcesResponse


class Floor(wire.DRAPluginServicer):
    """Yes to everything."""

    def __init__(self, server: apiserver.ResourceApi, driver: str) -> None:
        self._server = server
        self._driver = driver

    async def NodePrepareResources(self, request: pb.NodePrepareResourcesRequest, context: Context) -> Prepared:  # noqa: ARG002, N802 - the proto's
        """A CDI name for each device."""
        answer = Prepared()
        for claim in request.claims:
            found = await self._server.claim(claim.namespace, claim.name)
            for device in claims.allocated(found, self._driver):
                answer.claims[claim.uid].devices.append(
                    pb.Device(
                        request_names=[device.request],
                        pool_name=device.pool,
                        device_name=device.name,
                        cdi_device_ids=[f"nvidia.com/gpu={device.name}"],
                    )
                )
        return answer

    async def NodeUnprepareResources(self, request: pb.NodeUnprepareResourcesRequest, context: Context) -> Unprepared:  # noqa: ARG002, N802 - the proto's
        """Nothing was kept."""
        return Unprepared(claims={claim.uid: pb.NodeUnprepareResourceResponse() for claim in request.claims})


async def serve(socket: Path, kubeconfig: Path, driver: str) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = grpc.aio.server()
    wire.add_DRAPluginServicer_to_server(Floor(apiserver.connect(File(kubeconfig), "node", 5.0), driver), server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await stop.wait()
    await server.stop(0)


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dra_floor", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--driver", required=True)
    options = parser.parse_args()
    asyncio.run(serve(options.socket, options.kubeconfig, options.driver))


if __name__ == "__main__":
    main()
