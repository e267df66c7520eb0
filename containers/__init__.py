"""What the public tests of containers share: starting one by a command of its place, hearing it, and removing it.

A place is this machine, docker, podman, Kubernetes or Slurm. What a container writes is foreign: it is read within
limits, and nothing of it is believed here.
"""
