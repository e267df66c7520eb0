"""How a process shows its figures and how it is: a table of metrics, and a door for Prometheus and for probes."""
