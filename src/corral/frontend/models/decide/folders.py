"""Where the files of a model are on nodes: below which name. Pure."""

import hashlib

from corral.wire.models import OWN_FOLDER


def folder_of(model: str) -> str:
    """Return the directory of a model's files: its name, unless no clean path can hold that, or Corral's own files are
    there."""
    parts = model.split("/")
    is_clean = parts[0] != OWN_FOLDER and all(part not in ("", ".", "..") for part in parts)
    if is_clean and len(model.encode(errors="replace")) <= 200:
        return model
    return f"model-{hashlib.sha256(model.encode(errors='replace')).hexdigest()[:16]}"
