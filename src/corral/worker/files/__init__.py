"""The worker's file server: its model, data and staging directories over HTTP, as LocalAI's frontends expect it."""
