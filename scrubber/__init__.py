"""The scrub service: the only code that touches a GPU.

Imports point down; the floors stand as contracts in ``pyproject.toml``.
"""

__version__ = "0.1.0"
