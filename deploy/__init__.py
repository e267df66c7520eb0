"""How it is installed: image, chart, kustomize, units for systemd and Slurm. What is made of other things: generate."""
