"""Reads what a node's files, processes and sockets say. What cannot be read is a CheckFault, never an exception."""
