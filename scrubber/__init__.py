"""The scrub service: the only code that touches a GPU.

Imports point down: cli, daemon, app, api and monitor, service, engine, steps and health, devices node ledger,
config and metrics, core, errors and log. The contracts stand in ``pyproject.toml``.
"""

__version__ = "0.1.0"
