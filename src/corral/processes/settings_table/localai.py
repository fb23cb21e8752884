"""LocalAI's variables that Corral knows and does not need."""

from collections.abc import Mapping
from typing import Final

ACCEPTED_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "LOCALAI_DISTRIBUTED": "Corral is always distributed",
    "LOCALAI_AUTH": "every route needs a key already",
    "LOCALAI_NATS_REQUIRE_AUTH": "whether NATS needs credentials is decided by its server",
    "LOCALAI_GRPC_AUTH_TOKEN": "set by the worker for the backends it starts",
    "LOCALAI_FILE_TRANSFER_TIMEOUT": "without effect in LocalAI too",
    "LOCALAI_FILE_TRANSFER_RETRIES": "without effect in LocalAI too",
    "LOCALAI_GALLERIES": "Corral does not fetch models yet",
    "GALLERIES": "Corral does not fetch models yet",
    "LOCALAI_PREFETCH_MODELS": "Corral does not fetch models yet",
    "PREFETCH_MODELS": "Corral does not fetch models yet",
    "LOCALAI_DISTRIBUTED_SHARED_MODELS": "Corral does not move model files yet: nodes have to share them in any case",
    "LOCALAI_DISTRIBUTED_DISK_HEADROOM_CHECK": "Corral puts no model files on a node's disk yet",
    "LOCALAI_MODEL_SCHEDULING": "Corral has no rules of scheduling yet: it chooses the node itself",
    "LOCALAI_MODEL_SCHEDULING_CONFIG": "Corral has no rules of scheduling yet: it chooses the node itself",
    "LOCALAI_DISTRIBUTED_PREFIX_CACHE": "Corral does not route by prefix yet: the least busy replica answers",
    "LOCALAI_DISTRIBUTED_PREFIX_CACHE_TTL": "Corral does not route by prefix yet: the least busy replica answers",
}
"""Variables of LocalAI's that are taken without complaint and change nothing, with the reason."""
