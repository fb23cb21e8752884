"""Measurements that anyone can repeat: `make bench`. Everything runs on loopback, bounded in number and in time.

Nothing in `src/` imports this package; it may import all of `src/`, the testing kit included.
"""
