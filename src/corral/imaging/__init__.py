"""Makes images of backend directories, the same bytes for the same input, and the gallery index that lists them.

Knows nothing of nodes and installs. `build.py` says what an image consists of, `layers.py` how a layer is written.
"""
