"""Memory. Events are legal before they are durable, and durable before they are true; replay is recovery."""
