"""Decisions about nodes: pure functions of values and a time."""
