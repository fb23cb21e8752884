"""Images of backends: where they are, how they are fetched and checked, and how they are unpacked without harm.

Knows nothing of galleries, installs and nodes. The work is done in a child process; see `puller.py` for its parent's
side and `pull.py` for what it does.
"""
