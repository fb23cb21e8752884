"""Decisions about operations: pure functions of values and a time."""
