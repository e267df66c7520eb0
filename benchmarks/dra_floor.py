"""The do-nothing DRA driver, reading each claim, as every DRA driver must: what the language costs.

python -m benchmarks.dra_floor --socket PATH --kubeconfig FILE --driver NAME
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from demo.standins.do_nothing_driver import DoNothingDriver
from demo.standins.do_nothing_plugin import until_sigterm
from plugin.cluster.apiserver import ApiServer
from plugin.dra import claims
from plugin.kubelet_api import dra_pb2 as pb


class Reading(DoNothingDriver):
    """A CDI name for each device of a claim."""

    def __init__(self, name: str, socket: Path, server: ApiServer) -> None:
        super().__init__(name, socket)
        self._server = server

    async def prepared(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        """What the API server says that the claim gets."""
        found = await self._server.claim(claim.namespace, claim.name)
        answer = pb.NodePrepareResourceResponse()
        for device in claims.allocated(found, self.name):
            answer.devices.add(
                request_names=[device.request],
                pool_name=device.pool,
                device_name=device.name,
                cdi_device_ids=[f"nvidia.com/gpu={device.name}"],
            )
        return answer


async def serve(socket: Path, kubeconfig: Path, name: str) -> None:
    """Serve until SIGTERM."""
    driver = await Reading(name, socket, ApiServer(kubeconfig, "node", 5.0)).serve()
    await until_sigterm()
    await driver.stop()


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
