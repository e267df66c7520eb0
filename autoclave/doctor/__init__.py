"""The doctor of a node: ``findings`` judges it by its ``facts``, each looked up once and when asked.

Looking changes nothing: it reads files and connects to sockets.
"""
