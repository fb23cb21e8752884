"""Puts Corral and its pinned dependencies into `.venv`, and into `.build` a chat model, images of Corral's own backends
and what tests need, from nothing but a Python.

Owns `.venv` and `.build`. Uses the standard library only, writes nothing outside the checkout but uv's cache, and
needs neither root nor pip. No registry address stands here: whatever pip and apt are configured to use on this machine
is what gets used.
"""
