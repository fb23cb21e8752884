"""All places that models come from, each with the same real model: what `corral run` and `corral models pull` take."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from corral.oci.manifests import OCI_MANIFEST
from corral.oci.references import digest_of
from tests.kit.certificates import Authority
from tests.kit.file_server import FileServer
from tests.kit.hub_server import HuggingFaceServer, OllamaServer
from tests.kit.models import chat_model

REPOSITORY: Final = "Qwen/Qwen2.5-1.5B-Instruct-GGUF"
"""As the guide calls it. It has the weights of the small model that comes along."""
_BUILDS: Final = ("qwen2.5-1.5b-instruct-q4_k_m.gguf", "qwen2.5-1.5b-instruct-q8_0.gguf")
_GALLERY: Final = """\
- name: qwen-of-a-gallery
  description: The small model, by a gallery.
  license: apache-2.0
  tags: [llm, chat]
  config_file:
    backend: llama-cpp
    context_size: 2048
    parameters:
      model: from-a-gallery.gguf
    template:
      use_tokenizer_template: true
  files:
    - filename: from-a-gallery.gguf
      sha256: {sha256}
      uri: {uri}
"""


class ModelHubs:
    """Servers that speak the protocols of hubs. `with ModelHubs(folder) as hubs:` starts them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        folder = self._folder
        folder.mkdir(parents=True, exist_ok=True)
        weights = chat_model().read_bytes()
        self.hugging_face = self._stack.enter_context(HuggingFaceServer())
        self.ollama = self._stack.enter_context(OllamaServer())
        authority = Authority(folder / "authority")
        self.web = self._stack.enter_context(FileServer(certificate=authority.issue("web")))
        self.registry = self._stack.enter_context(FileServer())
        self.hugging_face.add_repository(
            REPOSITORY, dict.fromkeys(_BUILDS, weights), cdn=self.web, cardData={"license": "apache-2.0"}
        )
        self.ollama.add_model("library/qwen-of-ollama", {"model": weights, "license": b"Apache License"})
        self._add_image("team/qwen-of-a-registry", weights)
        url = self.web.add("/qwen-of-the-web.gguf", weights)
        own = folder / "qwen-of-the-disk.gguf"
        own.symlink_to(chat_model())
        gallery = folder / "gallery.yaml"
        gallery.write_text(_GALLERY.format(sha256=hashlib.sha256(weights).hexdigest(), uri=url), encoding="utf-8")
        self.bytes = len(weights)
        self.references: Mapping[str, str] = {
            "hf": f"hf://{REPOSITORY}",
            "ollama": "ollama://qwen-of-ollama",
            "oci": "oci://registry.example/team/qwen-of-a-registry:1",
            "https": url,
            "file": str(own),
            "gallery": "qwen-of-a-gallery",
        }
        """By their schemes."""
        self.settings = {
            "CORRAL_HF_URL": self.hugging_face.base,
            "CORRAL_OLLAMA_URL": self.ollama.base,
            "CORRAL_OCI_URL": self.registry.url(""),
            "SSL_CERT_FILE": str(authority.file),
            "CORRAL_MODEL_GALLERIES": json.dumps(
                [{"name": "corral", "url": "corral:builtin"}, {"name": "test", "url": gallery.as_uri()}]
            ),
        }
        return self

    def _add_image(self, name: str, weights: bytes) -> None:
        """A model as the CNCF's ModelPack writes it: the layer is the file."""
        digest = digest_of(weights)
        layer = {
            "mediaType": "application/vnd.cncf.model.weight.v1.raw",
            "digest": digest,
            "size": len(weights),
            "annotations": {"org.cncf.model.filepath": "weights.gguf"},
        }
        manifest = json.dumps({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": [layer]}).encode()
        for selector in ("1", digest_of(manifest)):
            place = f"/v2/{name}/manifests/{selector}"
            self.registry.add(place, manifest, headers={"Content-Type": OCI_MANIFEST})
        self.registry.add(f"/v2/{name}/blobs/{digest}", weights)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def sent(self) -> int:
        """Bytes that all servers have sent."""
        return sum(server.sent for server in (self.hugging_face, self.ollama, self.registry, self.web))
