"""Installs backends: sources, fetching, and the atomic switch to a new version."""
