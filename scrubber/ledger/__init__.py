"""The ledger: it stores legal events. Nothing acts on one before it is on the disk. A start replays them."""
