"""Decisions about models: pure functions of values and a time."""
