"""Where backends can be had; see `installer.Source`."""
