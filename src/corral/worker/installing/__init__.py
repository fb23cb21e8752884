"""Backends on this disk: where they come from, how they are fetched, and the atomic switch to a new one."""
