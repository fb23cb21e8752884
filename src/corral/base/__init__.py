"""Foundations that know nothing of the product: time, ids, errors, tasks, retries, logs, private files."""
