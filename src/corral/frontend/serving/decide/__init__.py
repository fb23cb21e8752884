"""Decisions about serving: pure functions of values and a time."""
