"""The ledger: events are legal before they are durable, and durable before they are true. A start replays them."""
