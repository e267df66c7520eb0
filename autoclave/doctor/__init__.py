"""Can this node keep the promise? ``findings`` judges a node by its ``facts``, each looked up once and when asked.

Looking changes nothing: it reads files and connects to sockets.
"""
