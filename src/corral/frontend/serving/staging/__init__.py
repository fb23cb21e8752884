"""Staging: bringing the files of models to nodes, and keeping account of what is there."""
