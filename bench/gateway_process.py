"""The process that is measured: a gateway as it is shipped, with nothing else in it, which says its port."""

import sys

from corral.gateway.config import GatewayConfig
from corral.processes.gateway import main

if __name__ == "__main__":
    config = GatewayConfig(port=0, control_url=sys.argv[1], control_key=sys.argv[2])
    main(config, ready=lambda port: print(port, flush=True))
