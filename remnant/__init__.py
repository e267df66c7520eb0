"""What the next container sees of the last one: words are planted on a GPU, handed over, and looked for.

``tenant`` is the program of both containers, ``launchers`` hand the GPU from one to the other, ``judge`` says what was
found, ``result_files`` writes it down. Nothing here needs a service of Autoclave.
"""
