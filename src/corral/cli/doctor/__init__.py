"""`corral doctor`: what is wrong, and what to do. One file per diagnostic that looks from here."""

from corral.cli.doctor.command import doctor

__all__ = ["doctor"]
