"""The same small route in several HTTP frameworks: `GET /nodes/{id}` answers one node as JSON.

Each module is a whole application, started by `bench/frameworks.py` with an interpreter that has what it imports.
"""
