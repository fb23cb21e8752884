"""Galleries: reads and caches their indexes, and merges them into one catalogue."""
