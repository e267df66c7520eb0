"""What people type: the command ``autoclave`` and its doctor.

Top of the tree: it imports everything below (``plugin``, ``scrubber``, ``policies``, ``ground``).
Nothing below imports it.
"""
