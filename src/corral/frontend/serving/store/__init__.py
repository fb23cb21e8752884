"""Guarded writes and reads of serving. Rows stay here."""
