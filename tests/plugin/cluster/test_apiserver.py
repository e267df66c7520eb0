"""What is said to the API server, and how its answers are taken, without one."""

import httpx2
import pytest

from plugin.cluster import apiserver, node_report
from plugin.cluster.node_report import EventReason, NodeEvent, PendingEvent
from plugin.cluster.reporter import ClusterReporter
from plugin.cluster.retry_loop import FailureKind
from scrub_api.request_limits import is_subdomain
from tests.plugin.cluster.conftest import QUICK

LONG = NodeEvent("GPU-0", EventReason.SICK, "xid", "x" * 5000)


def test_an_event_is_no_longer_than_the_api_server_takes():
    result = node_report.event_object(PendingEvent("n", LONG, 0), "node-1", "uid-1")
    assert len(result["message"]) == node_report.LONGEST_MESSAGE


def test_an_event_without_a_node_uid_uses_the_node_name():
    assert node_report.event_object(PendingEvent("n", LONG, 0), "node-1", "")["involvedObject"]["uid"] == "node-1"


@pytest.mark.parametrize("node", ["node-1", "a" * 253, f"{'a' * 229}.{'b' * 23}", f"{'a' * 228}-.{'b' * 20}"])
async def test_the_name_of_an_event_is_valid(api, node):
    reporter = ClusterReporter(apiserver.ApiServer(api.kubeconfig, node, 5.0), node, pace=QUICK)
    reporter._outbox.put(LONG, 0)
    letter = reporter._outbox.first()
    assert letter is not None
    assert is_subdomain(letter.name)


@pytest.mark.parametrize(
    ("code", "headers", "kind", "retry_after", "result"),
    [
        (400, {}, FailureKind.REFUSED, None, "the API server refuses to patch nodes: no"),
        (401, {}, FailureKind.FORBIDDEN, None, "the API server does not accept the credentials: no"),
        (403, {}, FailureKind.FORBIDDEN, None, "the right to patch nodes is missing: no"),
        (404, {}, FailureKind.MISSING, None, "cannot patch nodes, the object does not exist: no"),
        (409, {}, FailureKind.STALE, None, "another client changed the object before patch nodes: no"),
        (422, {}, FailureKind.REFUSED, None, "the API server refuses to patch nodes: no"),
        (429, {"Retry-After": "3"}, FailureKind.BUSY, 3.0, "the API server is busy"),
        (500, {}, FailureKind.AWAY, None, "the API server failed with status 500"),
        (503, {"Retry-After": "7"}, FailureKind.AWAY, 7.0, "the API server failed with status 503"),
        (503, {"Retry-After": "soon"}, FailureKind.AWAY, None, "the API server failed with status 503"),
    ],
)
def test_each_failed_answer_has_its_kind(code, headers, kind, retry_after, result):
    request = httpx2.Request("PATCH", "http://x")
    error = httpx2.HTTPStatusError("no", request=request, response=httpx2.Response(code, headers=headers))
    failure = apiserver._failure(error, "patch nodes")
    assert (failure.kind, failure.retry_after, failure.message) == (kind, retry_after, result)
