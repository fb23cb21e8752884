"""Lets `python -m corral` be the same as `corral`."""

from corral.cli.main import main

main()
