"""Can this node keep the promise? ``gathering`` reads the facts of the node, ``findings`` judges them.

Gathering changes nothing: it reads files and connects to sockets.
"""
