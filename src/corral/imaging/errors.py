"""How making an image may fail.

BuildFailed             the directory cannot become an image; names the file and what to turn
└── PackagesMissing     a Python package cannot be had for a platform
"""

from corral.base.errors import CorralError


class BuildFailed(CorralError):
    """The backend's directory cannot become an image."""

    code = "backend_build_failed"


class PackagesMissing(BuildFailed):
    """A Python package of the backend cannot be had."""

    code = "backend_packages_missing"
