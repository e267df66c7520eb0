"""Hardware behind ports. A backend says which devices there are and how they are; a ``Gpu`` is acted upon.

No backend knows another, none remembers anything, none decides anything.
"""
