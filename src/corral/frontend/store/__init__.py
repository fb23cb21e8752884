"""Storing: one file per noun on SQLAlchemy Core, SQLite and PostgreSQL alike. Rows never leave this package.

Transactions are short and none is open during other I/O. Every change is a guarded write that says whether it won.
Ids and times are passed in.
"""
