"""Where the files of a model are on nodes: below which name. Pure."""

import hashlib


def folder_of(model: str) -> str:
    """Return the directory of a model's files: its name, unless no clean path can hold that."""
    parts = model.split("/")
    if all(part not in ("", ".", "..") for part in parts) and len(model.encode(errors="replace")) <= 200:
        return model
    return f"model-{hashlib.sha256(model.encode(errors='replace')).hexdigest()[:16]}"
