"""Pure: what readers are told, and in which order."""
