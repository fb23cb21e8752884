"""Builds images from backend directories, reproducibly, and the gallery index that lists them.

Knows nothing of nodes and installs. `build.py` says what an image consists of, `layers.py` how a layer is written.
"""
