"""Guarded writes and reads of nodes. Rows stay here."""
