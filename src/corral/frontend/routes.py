"""Every route of the admin API, as one list: the router, the OpenAPI page and the reference are made from it."""

from typing import Final

from corral.frontend.access.routes import keys, sessions, users
from corral.frontend.api import web_page
from corral.frontend.api.route import RouteSpec
from corral.frontend.backends.routes import localai as backends
from corral.frontend.backends.routes import native as backend_lists
from corral.frontend.backends.routes import policies as backend_policies
from corral.frontend.diagnosis.routes import metrics, vitals
from corral.frontend.engines import routes as engines
from corral.frontend.live import routes as live
from corral.frontend.models.routes import changes as model_changes
from corral.frontend.models.routes import galleries as model_galleries
from corral.frontend.models.routes import localai as localai_models
from corral.frontend.models.routes import localai_changes, localai_offers, pulls
from corral.frontend.models.routes import native as models
from corral.frontend.nodes.routes import joining
from corral.frontend.nodes.routes import localai as nodes
from corral.frontend.nodes.routes import localai_self as node_self
from corral.frontend.nodes.routes import logs as node_logs
from corral.frontend.nodes.routes import native as nodes_native
from corral.frontend.operations.routes import localai as operations
from corral.frontend.operations.routes import native as operations_native
from corral.frontend.operations.routes import starting as operations_starting
from corral.frontend.record import routes as events
from corral.frontend.rules import routes as fleet_rules
from corral.frontend.serving.routes import files as node_files
from corral.frontend.serving.routes import gateways as serving
from corral.frontend.serving.routes import placement, scheduling

ROUTES: Final[tuple[RouteSpec, ...]] = (
    *vitals.ROUTES,
    *metrics.ROUTES,
    *node_self.ROUTES,
    *scheduling.ROUTES,  # before the nodes: none of them is called `scheduling`
    *nodes.ROUTES,
    *nodes_native.ROUTES,
    *node_logs.ROUTES,
    *joining.ROUTES,
    *backends.ROUTES,
    *backend_lists.ROUTES,
    *backend_policies.ROUTES,
    *operations.ROUTES,
    *operations_starting.ROUTES,
    *operations_native.ROUTES,
    *fleet_rules.ROUTES,
    *localai_models.ROUTES,
    *localai_changes.ROUTES,
    *localai_offers.ROUTES,
    *placement.ROUTES,
    *models.ROUTES,
    *model_changes.ROUTES,
    *model_galleries.ROUTES,
    *pulls.ROUTES,
    *serving.ROUTES,
    *engines.ROUTES,
    *node_files.ROUTES,
    *keys.ROUTES,
    *users.ROUTES,
    *sessions.ROUTES,
    *events.ROUTES,
    *live.ROUTES,
    *web_page.ROUTES,
)
