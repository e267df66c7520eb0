"""What is said to the API server, and how its answers are taken, without one."""

import httpx2
import pytest
from lightkube.models.core_v1 import Node, NodeSpec, Taint

from plugin.cluster import apiserver, credentials, judging, words
from plugin.cluster.base import ObjectKind
from plugin.cluster.credentials import File
from plugin.cluster.judging import Code, NodeEvent
from plugin.cluster.outbox import PendingEvent
from plugin.cluster.reporter import ClusterReporter
from tests.plugin.cluster.conftest import QUICK

LONG = NodeEvent("GPU-0", Code.SICK, "xid", "x" * 5000)


def test_an_event_is_no_longer_than_the_api_server_takes():
    told = words.event(PendingEvent("n", LONG, 0, 0), "node-1", "uid-1")
    assert len(told["message"]) == judging.LONGEST_MESSAGE
    assert len(words.again(PendingEvent("n", LONG, 0, 0))["message"]) == judging.LONGEST_MESSAGE


def test_an_event_of_a_node_whose_uid_is_not_known_is_found_as_the_kubelet_s_are():
    assert words.event(PendingEvent("n", LONG, 0, 0), "node-1", "")["involvedObject"]["uid"] == "node-1"


@pytest.mark.parametrize("node", ["node-1", "a" * 253, f"{'a' * 229}.{'b' * 23}", f"{'a' * 228}-.{'b' * 20}"])
async def test_the_name_of_an_event_is_one_that_it_may_have(api, node):
    reporter = ClusterReporter(apiserver.connect(File(api.kubeconfig), node, 5.0), node, taint=False, pace=QUICK)
    reporter._outbox.put(LONG, 0)
    letter = reporter._outbox.first()
    assert letter is not None
    assert credentials.is_name(letter.name)


def test_a_taint_is_removed_only_if_it_is_ours_at_that_place_of_that_node():
    assert words.remove_taint("7", 2) == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "test", "path": "/spec/taints/2/key", "value": words.TAINT},
        {"op": "remove", "path": "/spec/taints/2"},
    ]


@pytest.mark.parametrize(
    ("taints", "place"),
    [
        ([], None),
        ([(words.TAINT, "NoExecute")], None),  # somebody else's, whatever it is for
        ([("others", "NoSchedule")], None),
        ([("others", "NoSchedule"), (words.TAINT, "NoExecute"), (words.TAINT, "NoSchedule")], 2),
    ],
)
def test_our_taint_is_the_one_with_our_key_and_our_effect(taints, place):
    node = Node(spec=NodeSpec(taints=[Taint(key=key, effect=effect) for key, effect in taints]))
    assert apiserver._node(node).taint == place


@pytest.mark.parametrize(
    ("code", "headers", "kind", "retry_after", "told"),
    [
        (400, {}, ObjectKind.REFUSED, None, "the API server refuses to patch nodes: no"),
        (401, {}, ObjectKind.FORBIDDEN, None, "the API server does not know who we are: no"),
        (403, {}, ObjectKind.FORBIDDEN, None, "the right to patch nodes is missing: no"),
        (404, {}, ObjectKind.MISSING, None, "cannot patch nodes, it is not there: no"),
        (409, {}, ObjectKind.STALE, None, "somebody else was quicker to patch nodes: no"),
        (
            422,
            {},
            ObjectKind.STALE,
            None,
            "somebody else was quicker to patch nodes, or an admission policy refused it: no",
        ),
        (429, {"Retry-After": "3"}, ObjectKind.BUSY, 3.0, "the API server is busy"),
        (500, {}, ObjectKind.AWAY, None, "the API server failed with status 500"),
        (503, {"Retry-After": "7"}, ObjectKind.AWAY, 7.0, "the API server failed with status 503"),
        (503, {"Retry-After": "soon"}, ObjectKind.AWAY, None, "the API server failed with status 503"),
    ],
)
def test_each_answer_that_is_none_is_told_apart(code, headers, kind, retry_after, told):
    request = httpx2.Request("PATCH", "http://x")
    error = httpx2.HTTPStatusError("no", request=request, response=httpx2.Response(code, headers=headers))
    failure = apiserver._failure(error, "patch nodes", apiserver._STALE_PATCH)
    assert (failure.kind, failure.retry_after, failure.message) == (kind, retry_after, told)


def test_a_thing_that_cannot_be_said_is_refused_where_nothing_was_tested():
    """An Event is not a patch that holds for a state: saying it again does not help."""
    request = httpx2.Request("POST", "http://x")
    error = httpx2.HTTPStatusError("no", request=request, response=httpx2.Response(422))
    assert apiserver._failure(error, "create events", apiserver._STALE).kind is ObjectKind.REFUSED
