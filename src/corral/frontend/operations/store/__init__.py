"""Guarded writes and reads of operations. Rows stay here."""
