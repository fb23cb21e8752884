"""aiohttp's own server, encoded by msgspec. Started by itself: it is no ASGI application."""

import sys

import msgspec
import uvloop
from aiohttp import web

from bench.framework_apps.node import one_node

_encoder = msgspec.json.Encoder()


async def get_node(request: web.Request) -> web.Response:
    return web.Response(body=_encoder.encode(one_node(request.match_info["id"])), content_type="application/json")


def main(port: int) -> None:
    app = web.Application()
    app.router.add_get("/nodes/{id}", get_node)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None, loop=uvloop.new_event_loop())


if __name__ == "__main__":
    main(int(sys.argv[1]))
