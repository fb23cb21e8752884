"""Galleries: where they are read from, what is kept of them on the disk, and how they become one catalogue."""
