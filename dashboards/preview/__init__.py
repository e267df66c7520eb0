"""Pictures of the pages without a Grafana: what a reviewer looks at, and what the README shows.

It is a preview, not Grafana; ``README.md`` beside this says what is only near. Nothing of the program needs it.
"""
