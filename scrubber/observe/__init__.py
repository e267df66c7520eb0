"""What can be seen of a device: the observer, the cache of its observations, and how it lets go of a driver."""
