"""Runs one real worker process from a few values given as JSON: what `corral worker` does after reading settings."""

import json
import sys
from datetime import timedelta
from pathlib import Path

from corral.base.logs import LogOutput, set_up_logs
from corral.base.retry import Backoff
from corral.bus.config import BusConfig
from corral.processes.worker import main
from corral.worker.config import FrontendConfig, NodeConfig, WorkerConfig
from corral.worker.membership.addresses import AddressConfig


def config_from(values: dict[str, str]) -> WorkerConfig:
    data = Path(values["data"])
    pause = timedelta(milliseconds=1)
    return WorkerConfig(
        frontend=FrontendConfig(
            urls=(values["frontend"],),
            registration_token=values["token"],
            backoff=Backoff(first=pause, cap=pause),
        ),
        bus=BusConfig(url=values["nats"]),
        data_path=data,
        models_path=data / "models",
        backends_path=data / "backends",
        node=NodeConfig(name="process", capability_run_file=data / "capability"),
        addresses=AddressConfig(addr=values["addr"], http_addr=values["http_addr"]),
        heartbeat_interval=timedelta(milliseconds=100),
    )


if __name__ == "__main__":
    set_up_logs("worker", LogOutput(format="json"))
    sys.exit(main(config_from(json.loads(sys.argv[1]))))
