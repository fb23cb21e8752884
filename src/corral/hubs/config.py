"""Settings of hubs: where models come from, and with which tokens."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

from corral.base.setting_kinds import HTTP_URL, PASSWORD, PATH, SECRET, SWITCH, SettingKind, duration, whole
from corral.base.settings import setting
from corral.hubs.references import HUGGING_FACE, OLLAMA_REGISTRY
from corral.oci.config import ImagesConfig
from corral.oci.limits import Network


def _read_base(text: str) -> str:
    """Read a URL; `https://` where it has no scheme, as LocalAI does for mirrors."""
    return HTTP_URL.read(text if "://" in text else f"https://{text.strip()}")


HUB_URL: Final = SettingKind(
    placeholder="URL",
    allowed=HTTP_URL.allowed,
    read=_read_base,
    shown=HTTP_URL.shown,
    holds_password=HTTP_URL.holds_password,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubsConfig:
    """Addresses and tokens of the hubs that models come from."""

    section: ClassVar[str] = "hubs"
    title: ClassVar[str] = "Hubs of models"

    hf_url: str = setting(
        HUB_URL,
        """URL of Hugging Face, or of a mirror with the same routes, for `hf://` references and for URLs of
        huggingface.co. A mirror is asked instead of it, never beside it.""",
        aliases=("HF_MIRROR", "HF", "HF_ENDPOINT"),
        default=HUGGING_FACE,
    )
    hf_token: str = setting(
        SECRET,
        """Token for Hugging Face, or its mirror: needed for private repositories and those whose licence has to be
        accepted. It is sent to the host of `hf_url` only. None by default: most models are public.""",
        aliases=("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        default="",
        secret=True,
    )
    ollama_url: str = setting(
        HUB_URL,
        "URL of Ollama's registry, or of a mirror, for `ollama://` references that name no registry themselves.",
        default=f"https://{OLLAMA_REGISTRY}",
    )
    ollama_token: str = setting(
        PASSWORD,
        """Token for the registry of `ollama_url`, or `user:password`. It is sent there only. None by default: Ollama's
        models are public.""",
        default="",
        secret=True,
    )
    oci_url: str = setting(
        HUB_URL,
        """URL of a registry that is asked for `oci://` references instead of the one that they name: for
        `https://mirror.lan/models`, the model `quay.io/team/model:1` is `mirror.lan/models/team/model:1`. None by
        default. The setting is for models only; images of backends have their gallery's mirrors.""",
        default="",
    )
    oci_token: str = setting(
        PASSWORD,
        """Token for the registry of `oci_url`, or `user:password`. It is sent there only. Other registries have the
        logins of `images.registry_auth` and of Docker's and Podman's files. None by default.""",
        default="",
        secret=True,
    )
    private_redirects: bool = setting(
        SWITCH,
        """Whether a public host may redirect downloads of models to an address of the own network. Not by default:
        the author of a gallery could have the frontend read what only the frontend can reach.""",
        default=False,
    )
    answer_timeout: timedelta = setting(
        duration("1s", "10m"),
        "How long a hub may take to answer when a model is looked up. 30 s: longer than any that still works.",
        name="hub_timeout",
        default="30s",
    )
    context: int = setting(
        whole(256, 16_777_216),
        """Tokens of context of models whose configuration Corral makes itself, if they were trained for as many. 8192,
        as LocalAI has it: more costs memory on every machine that loads the model.""",
        name="default_context",
        default=8192,
    )
    first_model: Path | None = setting(
        PATH,
        """GGUF file of the small model that came with the set-up, which the built-in gallery calls smollm2. `corral up`
        names the one of its provisions.""",
        name="first_model_file",
        default=None,
    )
    images: ImagesConfig = field(default_factory=ImagesConfig, repr=False)
    """Proxies, hosts without TLS, and logins of registries."""

    @property
    def network(self) -> Network:
        """How downloads of models use the network. A mirror that settings name with `http://` is asked without TLS."""
        plain = [
            urlsplit(url).netloc for url in (self.hf_url, self.ollama_url, self.oci_url) if url.startswith("http:")
        ]
        network = self.images.network
        return replace(network, plain_hosts=(*network.plain_hosts, *plain))
