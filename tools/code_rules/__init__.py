"""Checks that no off-the-shelf linter makes: our rules about imports, tasks, purity, environment, sleeps and excepts.

One function per rule; every rule takes a parsed file (or all of them) and yields findings.
"""
