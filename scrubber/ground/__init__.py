"""What the plugin and the scrub service share: errors, logs, paths, asyncio, sockets. Imports no room."""
