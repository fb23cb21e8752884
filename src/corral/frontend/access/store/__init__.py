"""Guarded writes and reads of keys and users. Rows stay here."""
