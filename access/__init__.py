"""Who can open a GPU that it was not given: an owner holds a GPU, and outsiders try one way after the other.

``ways`` lists what is tried, ``probe`` is the program in each container, ``way_verdict`` says what counts, and
``run_report`` writes it down. Nothing here needs a service of Autoclave, or knows one.
"""
