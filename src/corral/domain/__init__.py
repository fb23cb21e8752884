"""Deciding: pure functions of a snapshot and a time. No I/O, no clock, no randomness, no logging."""
