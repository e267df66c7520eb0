"""A kubelet for tests of device plugins, without a node, root or a cluster. Start at ``demo.standins.kubelet``.

It imports nothing of Autoclave but the generated protocol, so that authors of other plugins can use it.
"""
