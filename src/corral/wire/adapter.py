"""Orders from a parent to its adapter and their answers, over a private socket: one JSON document per line.

The adapter says first where it listens. Every order has a number, which the answer repeats. A replica is known by its
bearer key alone: ordering it again under the same key replaces it. A worker's adapter ends with the socket that it
inherits. One of a frontend takes control after control, and serves on while there is none.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec

ORDER_BYTES: Final = 16 * 1024 * 1024
"""Limit of one line: more than the NATS server takes in a message, so that all that is sent to a worker fits."""


PASSED_BYTES: Final = 48 * 1024 * 1024
"""Limit of a file that is passed: the size of one gRPC message, minus room for the fields that are added."""

MODEL_GONE_STATUS: Final = 421
"""HTTP's word for a request that was led to the wrong place: the process has no model, or another one."""

BACKEND_GONE_HEADER: Final = "Corral-Backend-Gone"
"""In an answer of the adapter's: nobody serves at the replica's own address, so another replica may be asked."""


class RequestDefaults(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a request that says nothing gets, from the model's configuration. The numbers are LocalAI's."""

    temperature: float = 0.9
    top_p: float = 0.95
    top_k: int = 40
    min_p: float = 0.0
    typical_p: float = 1.0
    tail_free_z: float = 1.0
    max_tokens: int = 0
    """Longest answer in tokens; 0 is without limit."""
    repeat_penalty: float = 0.0
    repeat_last_n: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    mirostat: int = 0
    mirostat_eta: float = 0.1
    mirostat_tau: float = 5.0
    seed: int = -1
    """Seed of the sampling; -1 uses a new one for each request."""
    stop: tuple[str, ...] = ()
    """Stop sequences in addition to the request's own."""
    threads: int = 0
    ignore_eos: bool = False
    n_keep: int = 0
    """Tokens of the prompt that stay when the context is full."""
    n_draft: int = 0
    prompt_cache_all: bool = True
    language: str = ""
    """What is spoken in sounds to transcribe; empty: the backend finds out."""
    translate: bool = False
    """Whether transcripts are in English, whatever is spoken."""


class PromptTemplates(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How messages become a prompt, where the backend does not know: see `templates/`."""

    chat: str = ""
    chat_message: str = ""
    function: str = ""
    """The template that replaces `chat` for a request with tools."""
    completion: str = ""
    edit: str = ""
    multimodal: str = ""
    joined_by: str = "\n"
    roles: dict[str, str] = {}
    """What stands before a message of each role, where no template says."""
    grammar_disabled: bool = False
    no_action_disabled: bool = False
    no_action_name: str = ""
    """The name of the function by which a model says that it calls none. Empty means LocalAI's name."""
    no_action_description: str = ""


class AdapterModel(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How requests for one model become messages for its backend."""

    name: str
    """The model's name in answers."""
    identity: str = ""
    """The `ModelOptions.Model` of the replica's load, by which the backend recognises the model."""
    file: str = ""
    """Where its weights are on the node, if they are a file: some backends for speech need the path in every
    request."""
    voice: str = ""
    """Who speaks when the request names nobody."""
    use_tokenizer_template: bool = False
    """Whether the backend renders the prompt from the messages."""
    system_prompt: str = ""
    reply_prefix: str = ""
    """What answers begin with: the end of a prompt that belongs to the answer."""
    reasoning_effort: str = ""
    """How much thought a request gets that does not say; empty: as the backend likes."""
    thinks: bool | None = None
    """Whether the model shall think before it answers, where the configuration says so."""
    template_arguments: dict[str, Any] = {}
    """For the template that the backend renders; those of a request come on top."""
    takes_grammars: bool = False
    """Whether the backend keeps to grammars in llama.cpp's form."""
    takes_no_media: bool = False
    """Whether it is certain that the model takes neither pictures, sounds nor videos."""
    templates: PromptTemplates = PromptTemplates()
    defaults: RequestDefaults = RequestDefaults()


class AdapterReplica(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A replica that only speaks gRPC."""

    key: str
    """The bearer key that selects it."""
    address: str
    token: str = ""
    files_url: str = ""
    """The file server of its machine; empty without one, and on the adapter's own machine."""
    files_token: str = ""
    """The bearer token of that file server."""
    files_by_parent: bool = False
    """Whether the parent passes files of requests to and from its machine, which has no file server."""
    folder: str = ""
    """A directory of this machine for files of requests, which the replica may use and no other; empty: any."""
    model: AdapterModel


class Serve(msgspec.Struct, kw_only=True, frozen=True, tag="serve", tag_field="order"):
    """Serve this replica from now on."""

    number: int
    replica: AdapterReplica


class Forget(msgspec.Struct, kw_only=True, frozen=True, tag="forget", tag_field="order"):
    """Take no more requests for this key; those under way are cut off."""

    number: int
    key: str


class Retain(msgspec.Struct, kw_only=True, frozen=True, tag="retain", tag_field="order"):
    """Forget all keys but these: the first order of a parent, since there may be replicas of an earlier one."""

    number: int
    keys: tuple[str, ...]


class FilePassed(msgspec.Struct, kw_only=True, frozen=True, tag="passed", tag_field="order"):
    """What became of the wish of that number. The only order without an answer."""

    number: int
    path: str = ""
    error: str = ""


class Listening(msgspec.Struct, kw_only=True, frozen=True, tag="listening", tag_field="kind"):
    """The first line of an adapter: it is ready, at this address."""

    host: str
    port: int


class Done(msgspec.Struct, kw_only=True, frozen=True, tag="done", tag_field="kind"):
    """The order of that number is carried out."""

    number: int


class FileVerb(StrEnum):
    GIVE = "give"
    """Have a file of this machine on the replica's; answered with its path there."""
    PLACE = "place"
    """Have an empty file there that the backend can write to."""
    FETCH = "fetch"
    """Have a file of that machine here, at the target."""


class FileWish(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, tag="file", tag_field="kind"):
    """The adapter asks its parent to pass a file; its numbers are its own."""

    number: int
    key: str
    """The bearer key of the replica."""
    verb: FileVerb
    path: str = ""
    target: str = ""


AdapterOrder = Serve | Forget | Retain | FilePassed
Word = Listening | Done | FileWish
