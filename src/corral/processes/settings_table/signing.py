"""Settings of signing."""

from dataclasses import dataclass
from typing import ClassVar

from corral.processes.settings_kinds import PASSWORD
from corral.processes.settings_sources import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningSettings:
    """How images of backends are signed."""

    section: ClassVar[str] = "signing"
    title: ClassVar[str] = "Signing backends"

    password: str = setting(
        PASSWORD,
        """Password of the private key that `corral backend keygen` makes and `corral backend sign` uses. By default
        the person at the terminal is asked. It is never a flag: others could read it in the process list.""",
        env=("CORRAL_SIGNING_PASSWORD", "COSIGN_PASSWORD"),
        default="",
        default_text="whoever is at the terminal is asked",
        secret=True,
    )
