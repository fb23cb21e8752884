"""The sources of backends; see `orders.InstallSource`."""
