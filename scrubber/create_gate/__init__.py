"""The gate where containers are created: a program that the container runtime runs, and the socket that it asks."""
