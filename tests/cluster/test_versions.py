"""The table of feature gates in docs/dra.md, against the API server of this run."""

import http.client
import re
import ssl

from tests.cluster import programs
from tests.cluster.isolated import SERVICE
from tests.deploy.kubernetes_versions import GATES

ENABLED = re.compile(r'kubernetes_feature_enabled{name="(\w+)",stage="\w*"} ([01])')


def test_the_gates_of_this_version_are_those_of_the_page(node, gate):
    node.demand_running()
    context = ssl.create_default_context(cafile=programs.CERTIFICATE)
    connection = http.client.HTTPSConnection(SERVICE, programs.PORT, context=context)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {programs.TOKEN}"})
    found = dict(ENABLED.findall(connection.getresponse().read().decode()))
    connection.close()
    assert {name: found.get(name) == "1" for name in GATES} == {name: gate(name) for name in GATES}
