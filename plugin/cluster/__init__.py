"""Reports the state of this node's devices to the cluster: a condition and Events of the Node.

The reports go only one way: an answer or a failure of the API server never changes what the kubelet gets.
``node_report`` decides and makes JSON: it is pure. ``reporter`` runs it. ``apiserver`` alone uses HTTP. It is imported
by name, so that a plugin without credentials never loads the client library. ``nvsentinel`` reports to NVSentinel in
the same way, if an operator wants it.
"""
