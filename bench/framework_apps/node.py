"""The answer that all of them give, as large as one node in a list."""

from corral.wire.nodes import NodeView


def one_node(id: str) -> NodeView:
    """Return a new object for every request, as a real handler does."""
    return NodeView(
        id=id,
        name="node-000001",
        node_type="backend",
        address="10.0.0.1:50051",
        http_address="10.0.0.1:50050",
        status="healthy",
        total_vram=25_769_803_776,
        available_vram=21_474_836_480,
        reserved_vram=0,
        total_ram=68_719_476_736,
        available_ram=51_539_607_552,
        total_disk=1_073_741_824_000,
        available_disk=751_619_276_800,
        gpu_vendor="nvidia",
        gpu_compute_capability="8.9",
        capability="nvidia-cuda-12",
        max_replicas_per_model=1,
        max_replicas_per_model_manually_set=False,
        vram_budget_manually_set=False,
        last_heartbeat="2026-11-15T12:00:00.123456Z",
        created_at="2026-11-01T08:30:00.5Z",
        updated_at="2026-11-15T12:00:00.123456Z",
        model_count=0,
        in_flight_count=0,
        labels={"zone": "zone-1", "rack": "rack-17"},
    )
