"""Corral turns a set of machines into one OpenAI-compatible endpoint."""

__version__ = "0.2.0"
