"""Where backends can be had; see `install_orders.Source`."""
