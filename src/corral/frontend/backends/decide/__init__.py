"""Decisions about backends: pure functions of values and a time."""
