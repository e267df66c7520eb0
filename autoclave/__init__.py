"""What people type: the command ``autoclave`` and its doctor.

Top of the tree: it imports everything below (``plugin``, ``scrubber``, ``scrub_api``, ``policies``, ``ground``).
Nothing below imports it.
"""
