"""Pictures of the pages without a Grafana, for reviews and for the README.

It is a preview, not Grafana; the ``README.md`` in this folder lists the differences. The product does not need it.
"""
