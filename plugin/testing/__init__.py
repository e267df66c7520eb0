"""A kubelet for tests of device plugins: no node, no root, no cluster. Begin at ``plugin.testing.kubelet``.

It imports nothing of Autoclave but the generated protocol, so that other plugin authors can use it for theirs.
"""
