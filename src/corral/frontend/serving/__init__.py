"""Where models run: placement, scaling and draining of replicas, and replacing them without loss.

`loading` loads a model, `staging` brings its files to a node, `gateways` is what gateways know and report.
"""
