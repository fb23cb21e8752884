"""Every setting: its meaning, its unit and why its default is what it is.

One module, with one group, for each section of the file. Command-line options, messages and the reference are made of
this table, so a setting is added here and nowhere else.
"""

from typing import Final

from corral.processes.settings_sources import Group
from corral.processes.settings_table.client import ClientSettings
from corral.processes.settings_table.defaults import default_data, default_gallery_cache
from corral.processes.settings_table.frontend import FrontendSettings
from corral.processes.settings_table.gallery import GallerySettings
from corral.processes.settings_table.gateway import GatewaySettings
from corral.processes.settings_table.images import ImageSettings
from corral.processes.settings_table.localai import ACCEPTED_WITHOUT_EFFECT
from corral.processes.settings_table.logs import LogSettings
from corral.processes.settings_table.signing import SigningSettings
from corral.processes.settings_table.up import UpSettings
from corral.processes.settings_table.worker import MACHINE_SETTINGS, WorkerSettings

__all__ = [
    "ACCEPTED_WITHOUT_EFFECT",
    "CONTROL_NEEDS",
    "GATEWAY_NEEDS",
    "GROUPS",
    "MACHINE_SETTINGS",
    "WORKER_NEEDS",
    "ClientSettings",
    "FrontendSettings",
    "GallerySettings",
    "GatewaySettings",
    "ImageSettings",
    "LogSettings",
    "SigningSettings",
    "UpSettings",
    "WorkerSettings",
    "default_data",
    "default_gallery_cache",
]

GROUPS: Final[tuple[type[Group], ...]] = (
    FrontendSettings,
    GatewaySettings,
    WorkerSettings,
    UpSettings,
    ClientSettings,
    GallerySettings,
    ImageSettings,
    SigningSettings,
    LogSettings,
)

CONTROL_NEEDS: Final[tuple[type[Group], ...]] = (FrontendSettings, GallerySettings, ImageSettings, LogSettings)
GATEWAY_NEEDS: Final[tuple[type[Group], ...]] = (GatewaySettings, LogSettings)
WORKER_NEEDS: Final[tuple[type[Group], ...]] = (WorkerSettings, GallerySettings, ImageSettings, LogSettings)
"""The groups of settings that each kind of process reads: a child is given the variables of no others."""
