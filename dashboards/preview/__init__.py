"""Pictures of the pages without a Grafana, for reviews and for ``docs/images``. CONTRIBUTING says how to make them.

A preview is not Grafana. The theme, panel frames, stats, tables and time series, with their units, colours and value
mappings, are Grafana's own code, from npm. State timelines, headings and the head of a page are drawn similarly. Heat
maps, annotations and exemplars are missing, a folded section stays folded, and nothing works that a mouse needs.
"""
