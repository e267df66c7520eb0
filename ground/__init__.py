"""Code that the plugin and the scrub service share: errors, logs, paths, asyncio, sockets, limits. Imports no room."""
