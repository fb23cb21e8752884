"""Composition roots, one for each process, and the settings that they start from."""
