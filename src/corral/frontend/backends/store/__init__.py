"""Guarded writes and reads of backends. Rows stay here."""
