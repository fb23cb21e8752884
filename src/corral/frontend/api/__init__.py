"""What all routes share: the table of routes, bodies, answers, OpenAPI, pages, the server."""
