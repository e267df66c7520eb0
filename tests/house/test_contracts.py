"""Each planted import breaks its contract.

Imports are planted in the import graph, which is read once: reading all sources again takes longer than checking the
contracts. That the contracts hold for the files themselves is shown by test_lint.py.
"""

import ast
from copy import deepcopy
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import api
from importlinter.contracts import acyclic_siblings, forbidden, independence, layers, protected

ROOT = Path(__file__).parents[2]
KINDS: dict[str, Any] = {
    "acyclic_siblings": acyclic_siblings.AcyclicSiblingsContract,
    "forbidden": forbidden.ForbiddenContract,
    "independence": independence.IndependenceContract,
    "layers": layers.LayersContract,
    "protected": protected.ProtectedContract,
}

PURE, FLOORS, MEMORY = "core is pure", "scrubber: floors", "steps, devices and observers know no ledger"
DOOR, HOUSES, POLICIES = "door of the scrubber", "packages:", "plugin, dashboards and demo import no policies"
PROTOBUF, WIRE, CYCLE = (
    "only the gRPC modules import protobuf",
    "only the contract and its server import the generated types",
    "no import cycle",
)
REMNANT, FINDINGS = "nothing needs remnant", "findings of the doctor look"
ACCESS, SHARED = "nothing needs access", "access, and what public tests share"
PLUGIN, KNOWS_NONE, STAND_IN, SMALL = (
    "plugin: floors", "registration imports nothing", "the stand-ins import nothing", "the plugin stays small",
)  # fmt: skip
REPORTS = "only one module imports the Kubernetes client"
METRICS_CONTRACT, COMMAND = "door of the plugin", "autoclave: floors"
HANDS, CUPY = "the service process imports nothing that opens a GPU", "no module imports CuPy"
CUDA, NO_NVML = "only what opens a GPU imports scrubber.cuda", "scrubber.cuda imports no NVML"
SIGNING = "only the key of receipts imports cryptography"
STEPS, VERBS, LOOKS, DRIVER = (
    "no step imports another step",
    "no verb imports another verb",
    "observations never act",
    "the plugin never loads a driver library",
)

PLANTED = [
    ("scrubber/core/acquire.py", "import time", PURE),
    ("scrubber/core/model.py", "from ground import log", PURE),
    ("ground/errors.py", "import grpc", PURE),  # core sees it through errors
    ("policies/match.py", "import pathlib", PURE),
    ("ground/documents/units.py", "import os", PURE),  # the model sees it through units
    ("scrubber/core/acquire.py", "from scrubber.ledger import ledger", FLOORS),
    ("ground/log.py", "from scrubber.core import model", HOUSES),
    ("scrubber/service/service.py", "from scrubber.service import monitor", CYCLE),
    ("scrubber/cuda/cupy_loading.py", "from scrubber import devices", FLOORS),
    ("scrubber/utils.py", "import re", FLOORS),  # an unplanned package
    ("scrubber/steps/on_device.py", "from scrubber import ledger", MEMORY),
    ("scrubber/steps/evict.py", "from policies import policy_model", MEMORY),
    ("scrubber/devices/nvidia/health/vitals.py", "from scrubber.steps import on_device", LOOKS),
    ("scrubber/observe/observer.py", "from scrubber.steps import evict", LOOKS),
    ("scrubber/steps/on_device.py", "from scrubber.steps import evict", STEPS),
    ("scrubber/cuda/memory.py", "from scrubber import config", MEMORY),
    ("scrubber/cuda/memory.py", "import pynvml", NO_NVML),
    ("scrubber/assembly.py", "from scrubber.cuda import cuda_card", HANDS),
    ("scrubber/assembly.py", "from scrubber.cuda import memory", CUDA),
    ("scrubber/devices/nvidia/backend.py", "from scrubber.devices.nvidia import gpu", HANDS),
    ("scrubber/cuda/cuda_card.py", "import cupy_backends", CUPY),
    ("plugin/__init__.py", "from scrubber.core import acquire", DOOR),
    ("dashboards/__init__.py", "from scrubber import service", DOOR),
    ("dashboards/node.py", "from plugin import hooks", METRICS_CONTRACT),
    ("dashboards/node.py", "from demo import stage", HOUSES),
    ("plugin/__init__.py", "from policies import load", POLICIES),
    ("demo/story.py", "from policies import load", POLICIES),
    ("scrubber/assembly.py", "from autoclave import doctor", HOUSES),
    ("ground/log.py", "from policies import load", HOUSES),
    ("autoclave/cli/output/text_tables.py", "from demo import story", HOUSES),
    ("autoclave/doctor/finding.py", "from autoclave.cli import table", COMMAND),
    ("autoclave/cli/verbs/dra.py", "from autoclave.cli.verbs import plugin", VERBS),
    ("autoclave/helpers.py", "import re", COMMAND),  # an unplanned package
    ("autoclave/doctor/findings/node_checks.py", "import os", FINDINGS),
    ("plugin/__init__.py", "import dashboards", HOUSES),
    ("plugin/__init__.py", "import pynvml", DRIVER),
    ("plugin/preferred.py", "import random", PURE),
    ("plugin/registration/sockets.py", "from plugin import hooks", PLUGIN),
    ("plugin/hooks.py", "from plugin import device_plugin", PLUGIN),
    ("autoclave/doctor/finding.py", "from remnant import judge", REMNANT),
    ("access/way_verdict.py", "import time", PURE),
    ("access/trials.py", "from scrub_api import views", SHARED),
    ("access/trials.py", "import grpc", SHARED),
    ("autoclave/doctor/finding.py", "from access import way_verdict", ACCESS),
    ("containers/output.py", "from scrubber.core import model", SHARED),
    ("plugin/helpers.py", "import re", PLUGIN),  # an unplanned package
    ("plugin/registration/sockets.py", "from plugin import devices", KNOWS_NONE),
    ("plugin/registration/sockets.py", "from scrub_api import client", KNOWS_NONE),
    ("demo/standins/kubelet.py", "from plugin import response", STAND_IN),
    ("demo/standins/kubelet.py", "from ground import errors", STAND_IN),
    ("plugin/config.py", "import pydantic", SMALL),
    ("plugin/cluster/node_report.py", "import time", PURE),
    ("plugin/dra/driver_process.py", "from plugin.cluster import apiserver", REPORTS),
    ("plugin/dra/resource_slices.py", "import asyncio", PURE),
    ("plugin/plugin_process.py", "from plugin.cluster import apiserver", REPORTS),
    ("plugin/cluster/reporter.py", "import lightkube", REPORTS),
    ("plugin/hooks.py", "from google.protobuf import message", PROTOBUF),
    ("scrub_api/client.py", "from scrubber.devices import base", DRIVER),  # the plugin sees it through the client
    ("scrub_api/views.py", "from scrubber.core import model", HOUSES),
    ("scrub_api/views.py", "import time", PURE),
    ("autoclave/cli/__init__.py", "from scrub_api import scrub_pb2", WIRE),
    ("scrubber/ledger/ledger_rows.py", "from scrubber.ledger import ledger", CYCLE),
    ("scrubber/receipts/dsse.py", "import cryptography", SIGNING),
]


@pytest.fixture(scope="module")
def rules():
    """What the contracts say."""
    return api.read_configuration(str(ROOT / "pyproject.toml"))


@pytest.fixture(scope="module")
def graph(rules):
    """Who imports whom."""
    return grimp.build_graph(*rules["session_options"]["root_packages"], include_external_packages=True, cache_dir=None)


def broken(rules, graph, beginning=""):
    """The names of the contracts that are broken, among those with such a beginning."""
    found = [options for options in rules["contracts_options"] if options["name"].startswith(beginning)]
    assert found, f"there is no contract {beginning}"
    contracts = [KINDS[options["type"]](options["name"], rules["session_options"], options) for options in found]
    return [it.name for it in contracts if not it.check(deepcopy(graph), verbose=False).kept]


def planted(graph, file, line):
    """The graph as it were if that line stood in that file."""
    importer = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    with_it = deepcopy(graph)
    with_it.add_module(importer)
    imported = meant(line, graph.modules)
    if imported not in graph.modules:
        with_it.add_module(imported, is_squashed=True)
    with_it.add_import(importer=importer, imported=imported)
    return with_it


def meant(line, modules):
    """The module that a line imports: of packages that are not ours all but the first name is left out."""
    [statement] = ast.parse(line).body
    if isinstance(statement, ast.Import):
        return statement.names[0].name
    [name] = statement.names
    whole = f"{statement.module}.{name.name}"
    if whole in modules:
        return whole
    return statement.module if statement.module in modules else statement.module.partition(".")[0]


def test_the_contracts_hold_before_anything_is_planted(rules, graph):
    assert broken(rules, graph) == []


@pytest.mark.parametrize(("file", "line", "contract"), PLANTED, ids=[f"{f}: {line}" for f, line, _ in PLANTED])
def test_a_planted_import_breaks_its_contract(rules, graph, file, line, contract):
    assert broken(rules, planted(graph, file, line), contract)


def test_every_contract_has_a_planted_violation(rules):
    planted = tuple({contract for _, _, contract in PLANTED})
    assert [it["name"] for it in rules["contracts_options"] if not it["name"].startswith(planted)] == []
