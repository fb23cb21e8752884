"""Servers that speak the protocols of hubs of models: Hugging Face's API and Ollama's registry. From their public
documentation; they serve whatever files they are given.

    with HuggingFaceServer() as server:
        server.add_repository("org/repo", {"model.gguf": content})
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from corral.oci.manifests import DOCKER_MANIFEST
from corral.oci.references import digest_of
from tests.kit.file_server import FileServer

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
_LARGE: Final = (".gguf", ".safetensors", ".bin")


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class HuggingFaceServer(FileServer):
    """The routes that are needed to find and to download models."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.repositories: list[str] = []

    @property
    def base(self) -> str:
        return self.url("")

    def add_repository(
        self,
        name: str,
        files: Mapping[str, bytes],
        *,
        token: str = "",
        is_gated: bool = False,
        cdn: FileServer | None = None,
        **facts: object,
    ) -> None:
        """Serve a repository. With a `cdn`, large files are redirected there, as the real one does."""
        authorization = f"Bearer {token}" if token else ""
        refusal = {"X-Error-Code": "GatedRepo" if is_gated else "RepoNotFound"}
        limits = {"authorization": authorization, "refusal": refusal}
        siblings = [self._sibling(path, content) for path, content in files.items()]
        document = {"id": name, "sha": COMMIT, "gated": "auto" if is_gated else False, "siblings": siblings, **facts}
        # The real one tells the names of files of gated repositories to everybody; some mirrors do not.
        api_limits = {} if is_gated else limits
        for revision in ("main", COMMIT):
            self.add(f"/api/models/{name}/revision/{revision}", json.dumps(document).encode(), **api_limits)
        for path, content in files.items():
            place = f"/{name}/resolve/{COMMIT}/{quote(path)}"
            if cdn is not None and path.endswith(_LARGE):
                self.redirect(place, cdn.add(f"/cdn/{name}/{quote(path)}", content))
            else:
                self.add(place, content, **limits)
        self.repositories.append(name)
        self.add("/api/models", json.dumps([{"id": repository} for repository in self.repositories]).encode())

    def add_tree(self, name: str, files: Mapping[str, bytes], *, page: int = 1000) -> None:
        """Serve a repository as mirrors do that know no sizes beside names: those are in pages of the tree."""
        self.add_repository(name, files, siblings=[{"rfilename": path} for path in files])
        entries = [self._entry(path, content) for path, content in files.items()]
        entries.insert(0, {"type": "directory", "path": "folder", "oid": "1" * 40, "size": 0})
        # One path cannot have several pages here, so that each page has a path of its own.
        for number, start in enumerate(range(0, len(entries), page)):
            path = f"/api/models/{name}/tree/{COMMIT}" + (f"/page{number}" if number else "")
            onward = f"/api/models/{name}/tree/{COMMIT}/page{number + 1}"
            link = {"Link": f'<{self.url(onward)}>; rel="next"'} if start + page < len(entries) else {}
            self.add(path, json.dumps(entries[start : start + page]).encode(), headers=link)

    def _sibling(self, path: str, content: bytes) -> dict[str, object]:
        sibling: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": git_sha1(content)}
        if path.endswith(_LARGE):
            digest = hashlib.sha256(content).hexdigest()
            sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
        return sibling

    def _entry(self, path: str, content: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)}
        if path.endswith(_LARGE):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return entry


class OllamaServer(FileServer):
    """Ollama's registry: a manifest per model, and its layers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._tags: dict[str, list[str]] = defaultdict(list)

    @property
    def base(self) -> str:
        return self.url("")

    def add_model(self, name: str, layers: Mapping[str, bytes], *, tag: str = "latest", authorization: str = "") -> str:
        """Serve a model. `layers` are by the last word of their type: model, template, params, system, projector,
        license, adapter, messages. Returns the digest of the manifest."""
        described = []
        for kind, content in layers.items():
            digest = digest_of(content)
            self.add(f"/v2/{name}/blobs/{digest}", content, authorization=authorization)
            media_type = f"application/vnd.ollama.image.{kind}"
            described.append({"mediaType": media_type, "digest": digest, "size": len(content)})
        manifest = {"schemaVersion": 2, "mediaType": DOCKER_MANIFEST, "layers": described}
        body = json.dumps(manifest).encode()
        for selector in (tag, digest_of(body)):
            self.add(f"/v2/{name}/manifests/{selector}", body, authorization=authorization)
        self._tags[name].append(tag)
        self.add(f"/v2/{name}/tags/list", json.dumps({"name": name, "tags": self._tags[name]}).encode())
        return digest_of(body)
