"""Models of Ollama's registry: what its layers say, in LocalAI's words. What has no such words is named in a note."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from corral.base.errors import InvalidInput
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.words import listed
from corral.hubs.access import HubAccess
from corral.hubs.listings import HubFile, HubListing, HubName, HubRefused, OwnSettings
from corral.hubs.model_layers import ModelLayers, read_layers
from corral.hubs.references import OLLAMA_REGISTRY, OllamaReference
from corral.oci.manifests import Descriptor
from corral.oci.references import Reference

OLLAMA_LAYER: Final = "application/vnd.ollama.image."
"""How the types of its layers begin."""
_PARAMETERS: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "tfs_z": "tfz",
    "seed": "seed",
    "num_predict": "max_tokens",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "num_batch": "batch",
}
_TOP: Final[Mapping[str, str]] = {
    "num_ctx": "context_size",
    "num_gpu": "gpu_layers",
    "num_thread": "threads",
    "use_mmap": "mmap",
    "use_mlock": "mmlock",
    "low_vram": "low_vram",
}
_MOST_CONTEXT: Final = 1 << 24
_ACTION: Final = re.compile(r"\{\{(?P<left>-(?=\s))?(?P<code>.*?)(?P<right>(?<=\s)-)?\}\}", re.DOTALL)
_SYSTEM: Final = ".System"
_PROMPT: Final = ".Prompt"
_RESPONSE: Final = ".Response"
_ORDER: Final = (_SYSTEM, _PROMPT, _RESPONSE)
_LONGEST: Final = 64 * 1024


def registry_reference(reference: OllamaReference, hub: HubAccess) -> Reference:
    """Return where a model is: in the registry of the settings, unless the reference names another."""
    base = hub.config.ollama_url if reference.registry == OLLAMA_REGISTRY else f"https://{reference.registry}"
    parts = urlsplit(base)
    repository = f"{parts.path.strip('/')}/{reference.namespace}/{reference.name}".lstrip("/")
    return Reference(registry=parts.netloc, repository=repository, tag=reference.tag)


async def list_ollama(reference: OllamaReference, hub: HubAccess) -> HubListing:
    """Return the files of a model, and what its other layers say."""
    model = await read_layers(registry_reference(reference, hub), hub, HubName.OLLAMA)
    name = reference.name if reference.tag == "latest" else f"{reference.name}-{reference.tag}"
    place = reference.name if reference.namespace == "library" else f"{reference.namespace}/{reference.name}"
    registry = "" if reference.registry == OLLAMA_REGISTRY else f"{reference.registry}/"
    return await describe(model, name=name, resolved=f"ollama://{registry}{place}@{model.digest}", hub=HubName.OLLAMA)


async def describe(model: ModelLayers, *, name: str, resolved: str, hub: HubName) -> HubListing:
    """Return the listing of a manifest with Ollama's layers, in whatever registry it is."""
    reading = OllamaLayers(model, name, hub)
    for layer in model.layers:
        await reading.take(layer)
    if not any(file.path == f"{name}.gguf" for file in reading.files):
        raise InvalidInput("reference", f"{model.reference} has no weights, so it is not a model that runs here")
    return HubListing(
        name=name,
        resolved=resolved,
        files=tuple(reading.files),
        beside=tuple(reading.adapters),
        licence=reading.licence or model.licence,
        notes=tuple(reading.notes),
        own=reading.settings(),
    )


class OllamaLayers:
    """Collects what the layers of one model say."""

    def __init__(self, model: ModelLayers, name: str, hub: HubName) -> None:
        self._model = model
        self._name = name
        self._hub = hub
        self._parameters: dict[str, object] = {}
        self._top: dict[str, object] = {}
        self._template: Mapping[str, object] = {}
        self._template_problem = ""
        self.files: list[HubFile] = []
        self.adapters: list[HubFile] = []
        self.notes: list[str] = []
        self.licence = ""

    async def take(self, layer: Descriptor) -> None:
        kind = layer.media_type.removeprefix(OLLAMA_LAYER)
        match kind:
            case "model" | "projector" | "adapter":
                self._take_file(kind, layer)
            case "params":
                self._take_parameters(await self._model.text(layer))
            case "system":
                self._top["system_prompt"] = await self._model.text(layer)
            case "template" | "prompt":
                self._take_template(await self._model.text(layer))
            case "license":
                if not self.licence:
                    text = (await self._model.text(layer)).strip()
                    self.licence = text.partition("\n")[0].strip()[:100]
            case _:
                self.notes.append(f"the layer {kind[:80]!r} of Ollama's model is not taken over")

    def _take_file(self, kind: str, layer: Descriptor) -> None:
        prefix = {"model": "", "projector": "mmproj-", "adapter": "adapter-"}[kind]
        file = self._model.file(layer, f"{prefix}{self._name}.gguf", self._hub)
        files = self.adapters if kind == "adapter" else self.files
        if any(other.path == file.path for other in files):
            self.notes.append(f"a further layer {kind!r} of Ollama's model is not taken over")
            return
        files.append(file)
        if kind == "adapter":
            self._top["lora_adapter"] = file.name  # engines look for it beside the weights

    def _take_parameters(self, text: str) -> None:
        try:
            stated = msgspec.json.decode(text, type=dict[str, object])
        except UNREADABLE_JSON as error:
            raise HubRefused(f"{self._model.reference}: its parameters cannot be read") from error
        unknown = []
        for key, value in stated.items():
            if key == "stop" and isinstance(value, list) and all(isinstance(word, str) for word in value):
                self._top["stopwords"] = value
            elif key == "num_ctx" and (not isinstance(value, int) or not 0 < value <= _MOST_CONTEXT):
                unknown.append(key)
            elif key in _PARAMETERS and isinstance(value, int | float) and not isinstance(value, bool):
                self._parameters[_PARAMETERS[key]] = value
            elif key in _TOP and isinstance(value, int):
                self._top[_TOP[key]] = value
            else:
                unknown.append(key[:80])
        if unknown:
            self.notes.append(f"parameters of Ollama's model that are not taken over: {listed(unknown)}")

    def _take_template(self, text: str) -> None:
        try:
            self._template = convert_template(text)
        except InvalidInput as error:
            self._template_problem = error.problem

    def settings(self) -> OwnSettings:
        return OwnSettings(
            parameters=self._parameters,
            top=self._top,
            template=self._template,
            template_problem=self._template_problem,
            source="Ollama",
        )


# Templates.


@dataclass(slots=True)
class _TurnTexts:
    """What stands before and behind the content of one role."""

    before: str = ""
    after: str = ""
    is_there: bool = False


def convert_template(text: str) -> Mapping[str, object]:
    """Return LocalAI's templates for one of Ollama's. InvalidInput says what of it they cannot say.

    Taken are templates with one place each for system, prompt and response, one after the other. Others walk over
    messages and tools by themselves, and have no counterpart: LocalAI's are rendered once for every message.
    """
    if len(text) > _LONGEST:
        raise InvalidInput("template", f"it has more than {_LONGEST} characters")
    turns = _OllamaTurns().read(text)
    system, user, assistant = (turns[name] for name in _ORDER)

    def turn(role: str, texts: _TurnTexts) -> str:
        return f'{{{{ if eq .RoleName "{role}" }}}}{texts.before}{{{{ .Content }}}}{texts.after}{{{{ end }}}}'

    first = '{{ if and (eq .MessageIndex 0) (ne .RoleName "system") .SystemPrompt }}'
    default = f"{first}{system.before}{{{{ .SystemPrompt }}}}{system.after}{{{{ end }}}}"
    return {
        "chat_message": (default + turn("system", system) if system.is_there else "")
        + turn("user", user)
        + turn("assistant", assistant),
        "chat": "{{ .Input }}" + assistant.before,
        "completion": "{{ .Input }}",
        "join_chat_messages_by_character": "",
    }


class _OllamaTurns:
    """Walks over a template once."""

    def __init__(self) -> None:
        self._turns = {name: _TurnTexts() for name in _ORDER}
        self._pending = ""
        self._opened = ""

    def read(self, text: str) -> Mapping[str, _TurnTexts]:
        at, is_trimmed = 0, False
        whole = text[: text.rfind("}}") + 2]  # an action without an end would be searched for it again and again
        for action in _ACTION.finditer(whole):
            piece = text[at : action.start()]
            piece = piece.lstrip() if is_trimmed else piece
            self._pending += piece.rstrip() if action["left"] else piece
            self._take(action["code"].strip())
            at, is_trimmed = action.end(), bool(action["right"])
        self._pending += text[at:].lstrip() if is_trimmed else text[at:]
        return self._finished()

    def _take(self, code: str) -> None:
        condition = code.removeprefix("if ").strip() if code.startswith("if ") else ""
        if code in self._turns:
            self._place(code)
        elif condition in self._turns and not self._opened:
            if condition == _SYSTEM and self._pending.strip():
                raise InvalidInput("template", "it has a text before the part of the system")
            self._opened = condition
        elif code == "end" and self._opened:
            turn = self._turns[self._opened]
            if not turn.is_there:
                raise InvalidInput("template", "a part of it has no content")
            turn.after, self._opened, self._pending = self._pending, "", ""
        else:
            raise InvalidInput("template", f"it uses {{{{ {code[:60]} }}}}, which LocalAI's templates cannot say")

    def _place(self, name: str) -> None:
        turn = self._turns[name]
        later = _ORDER[_ORDER.index(name) + 1 :]
        if turn.is_there or self._opened not in ("", name) or any(self._turns[other].is_there for other in later):
            raise InvalidInput("template", f"it has {name} twice, inside of another part, or not in the usual order")
        turn.before, turn.is_there, self._pending = self._pending, True, ""

    def _finished(self) -> Mapping[str, _TurnTexts]:
        if self._opened or not self._turns[_PROMPT].is_there:
            raise InvalidInput("template", "it has no place for the prompt")
        response = self._turns[_RESPONSE]
        if response.is_there:
            response.after += self._pending
        else:
            response.before = self._pending
        if any("{{" in turn.before + turn.after for turn in self._turns.values()):
            raise InvalidInput("template", "an action of it is not closed")
        return self._turns
