"""The worker's file server: what lies in its model, data and staging directories, over HTTP, as LocalAI's frontends
expect it."""
