"""FastAPI, with the pydantic model that its OpenAPI page is made from."""

# mypy: ignore-errors
# Its framework is not installed where types are checked.

import msgspec
import pydantic
from fastapi import FastAPI

from bench.framework_apps.node import one_node


class Node(pydantic.BaseModel):
    id: str
    name: str
    node_type: str
    address: str
    http_address: str
    status: str
    total_vram: int
    available_vram: int
    reserved_vram: int
    total_ram: int
    available_ram: int
    total_disk: int
    available_disk: int
    gpu_vendor: str
    gpu_compute_capability: str
    capability: str
    max_replicas_per_model: int
    max_replicas_per_model_manually_set: bool
    vram_budget_manually_set: bool
    last_heartbeat: str
    created_at: str
    updated_at: str
    model_count: int
    in_flight_count: int
    labels: dict[str, str]


app = FastAPI()


@app.get("/nodes/{id}")
async def get_node(id: str) -> Node:
    return Node(**msgspec.to_builtins(one_node(id)))
