"""Settings of `corral up`."""

# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does

import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from corral.processes.settings_kinds import HOST, PATH, duration, whole
from corral.processes.settings_sources import Derived, setting
from corral.processes.settings_table.defaults import DATA_DEFAULT
from corral.processes.settings_table.shared import public_certificate, public_host, public_key, public_port


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """What `corral up` needs; the rest its frontend and its workers take from the environment and the same file."""

    section: ClassVar[str] = "up"
    title: ClassVar[str] = "`corral up`"

    data: Path = setting(
        PATH,
        "Directory for everything: database, keys, NATS, models, one folder per worker, and `up.json` for scripts.",
        flag="--data",
        env=("CORRAL_DATA",),
        default=DATA_DEFAULT,
    )
    host: str = public_host()
    port: int = public_port()
    tls_cert: Path | None = public_certificate()
    tls_key: Path | None = public_key()
    workers: int = setting(
        whole(0, 100),
        "How many workers to start; 0 for none. 2, so that the first look shows a fleet and not a machine.",
        flag="--workers",
        env=("CORRAL_WORKERS",),
        default=2,
    )
    nats_host: str = setting(
        HOST,
        """Address the embedded NATS server listens on. Loopback by default; set it to let workers on other machines
        in, together with `host`.""",
        flag="--nats-host",
        env=("CORRAL_NATS_HOST",),
        default="127.0.0.1",
    )
    nats_port: int | None = setting(
        whole(1, 65535),
        "Port the embedded NATS server listens on. The one of last time is kept, so that workers find it again.",
        flag="--nats-port",
        env=("CORRAL_NATS_PORT",),
        default=None,
        default_text="that of last time, else 4222, else a free one",
    )
    heartbeat_interval: timedelta = setting(
        duration(timedelta(milliseconds=100), timedelta(hours=1), bounds="from 100ms to 1h"),
        """Time between heartbeats of the workers. 2 s: on one machine it costs nothing, and a dead worker shows at
        once.""",
        flag="--heartbeat-interval",
        env=("CORRAL_HEARTBEAT_INTERVAL",),
        default=timedelta(seconds=2),
        default_text="2s",
    )
    models: Path | None = setting(
        PATH,
        "Directory of the model files, which frontend and workers share.",
        flag="--models",
        env=("CORRAL_MODELS_PATH", "LOCALAI_MODELS_PATH", "MODELS_PATH"),
        default=None,
        default_text="`models` in the data directory",
    )
    provisions: Path = setting(
        PATH,
        """What a new fleet is given, in a directory: `first-model.gguf`, and in `backends` images of our own backends.
        Set-up (`make setup`, or the first `make up`) puts it beside the program, so that `corral up` and `make up` give
        the same fleet. What is not there is done without.""",
        flag="--provisions",
        env=("CORRAL_PROVISIONS",),
        default=Derived("`share/corral` beside the program", lambda _: Path(sys.prefix) / "share" / "corral"),
    )
    first_model: Path | None = setting(
        PATH,
        """A GGUF file that a new fleet without models starts with, under the name smollm2.""",
        flag="--first-model",
        env=("CORRAL_FIRST_MODEL",),
        default=None,
        default_text="the one of the provisions, if there is one",
    )
