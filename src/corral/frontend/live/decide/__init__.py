"""Pure decisions about what readers of the live stream get, and in which order."""
