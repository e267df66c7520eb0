"""What the cluster is told of this node's devices: a condition and Events of the Node, and a taint where wanted.

It is told, never asked: nothing that the API server says, or fails to say, changes what the kubelet gets. Decisions
(``judging``, ``outbox``) and words (``words``) are pure; ``reporter`` keeps at it; ``apiserver`` alone speaks HTTP and
is loaded by name, so that a plugin without credentials never loads the client.
"""
