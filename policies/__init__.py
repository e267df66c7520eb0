"""Policies: what an operator decides, how a policy file is read, and which rule applies to a device.

This package touches no device. Of Autoclave it imports only ``ground``.
"""
