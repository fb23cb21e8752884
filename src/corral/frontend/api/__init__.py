"""The admin API: LocalAI's routes in LocalAI's form, and Corral's own under `/api/v1`. Thin over `control/`."""
