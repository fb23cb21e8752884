"""Renders requests as LocalAI does: roles, joined messages, tools, pictures; then the model's template.

What differs on purpose: a template that fails is an error. LocalAI goes on with the bare messages then, and the model
never hears of its tools. Nor are tools lost because of a `tool_choice` that is a word, or that names no tool.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from corral.base import config_fields as fields
from corral.base.errors import InvalidInput
from corral.templates import template_data
from corral.templates.errors import TemplateRefused
from corral.templates.evaluate import MOST_WORK_FOR_A_REQUEST, Allowance, execute
from corral.templates.parser import parse
from corral.templates.printing import JsonStyle, json_text
from corral.templates.template_data import CHAT_MESSAGE, FUNCTION, PROMPT, items, mapping, text
from corral.templates.turns import Turn, read_turns
from corral.templates.values import NilSlice, StructValue, is_list

Config = Mapping[str, object]
Request = Mapping[str, object]
TEMPLATES: Final = ("chat", "chat_message", "completion", "edit", "function", "multimodal")
NO_ACTION: Final = "answer"
NO_ACTION_DESCRIPTION: Final = "use this action to answer without performing any action"
_FILE_NAME: Final = re.compile(r"\s*[\w.-]{1,100}\s*")
"""A lone word: LocalAI looks for a file of that name with `.tmpl` behind it. As a template it hides what was said."""
_NO_ACTION_PARAMETERS: Final = {
    "properties": {"message": {"type": "string", "description": "The message to reply the user with"}}
}


class PromptSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's configuration says about prompts."""

    templates: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The templates that are not empty, by their names in TEMPLATES."""
    use_tokenizer_template: bool = False
    joined_by: str = "\n"
    roles: Mapping[str, str] = msgspec.field(default_factory=dict)
    system_prompt: str = ""
    reasoning_effort: str = ""
    """That of a request which does not say."""
    grammar_disabled: bool = False
    no_action_disabled: bool = False
    no_action_name: str = NO_ACTION
    no_action_description: str = NO_ACTION_DESCRIPTION

    @classmethod
    def of(cls, config: Config) -> "PromptSettings":
        """Read LocalAI's configuration. InvalidInput names a key whose value is of a wrong type."""
        for key in ("template", "function", "function.grammar"):
            if not isinstance(value := fields.value_at(config, key), Mapping | None):
                raise InvalidInput(key, f"must be a mapping of names to values, got {fields.kind(value)}")
        sources = {name: fields.text(config, f"template.{name}") for name in TEMPLATES}
        return cls(
            templates={name: source for name, source in sources.items() if source},
            use_tokenizer_template=_switch(config, "template.use_tokenizer_template"),
            joined_by=fields.text(config, "template.join_chat_messages_by_character", "\n"),
            roles=_roles(config),
            system_prompt=fields.text(config, "system_prompt"),
            reasoning_effort=fields.text(config, "reasoning_effort"),
            grammar_disabled=_switch(config, "function.grammar.disable"),
            no_action_disabled=_switch(config, "function.disable_no_action"),
            no_action_name=fields.text(config, "function.no_action_function_name") or NO_ACTION,
            no_action_description=fields.text(config, "function.no_action_description_name") or NO_ACTION_DESCRIPTION,
        )


def _switch(config: Config, key: str) -> bool:
    return fields.switch(config, key, False) is True


def _roles(config: Config) -> Mapping[str, str]:
    roles = fields.texts_by_name(config, "roles", {})
    return roles if isinstance(roles, dict) else {}


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True):
    """What the model hears of the request's tools."""

    functions: list[object] = msgspec.field(default_factory=NilSlice)
    used: bool = False
    """Whether the template for functions is taken."""
    constrained: bool = False
    """Whether a grammar limits the answer."""


def refusals(config: Config) -> list[TemplateRefused]:
    """Return what is wrong with the templates of a configuration, at most one problem each.

    What is no text is passed over: others check the types of all keys.
    """
    sources = {name: fields.value_at(config, f"template.{name}") for name in TEMPLATES}
    problems = [template_problem(source, name) for name, source in sources.items() if isinstance(source, str)]
    return [problem for problem in problems if problem is not None]


def template_problem(source: str, name: str) -> TemplateRefused | None:
    """Return why a template cannot be used; None if it can."""
    if _FILE_NAME.fullmatch(source):
        return TemplateRefused(
            name, 1, f"{source.strip()!r} is the name of a file, not a template: write its text here"
        )
    try:
        parse(source, name)
    except TemplateRefused as problem:
        return problem
    return None


def has_place_for_tools(settings: PromptSettings) -> bool:
    """Whether a request's tools reach the model: a template is made for them, or the one for chats shows them."""
    return "function" in settings.templates or ".Functions" in settings.templates.get("chat", "")


# Chats.


def render_chat(settings: PromptSettings, request: Request) -> str:
    """Render the messages of a request. TemplateRefused, TemplateFailed or InvalidInput say why not."""
    offered = offered_tools(settings, request)
    extras = {
        "ReasoningEffort": text(request.get("reasoning_effort"), "reasoning_effort") or settings.reasoning_effort,
        "Metadata": template_data.metadata(request.get("metadata"), "metadata"),
    }
    allowance = Allowance(MOST_WORK_FOR_A_REQUEST)
    multimodal = settings.templates.get("multimodal", "")
    messages = read_turns(items(request.get("messages"), "messages"), multimodal, allowance)
    constrained = offered.constrained
    rendered = [
        _rendered_turn(settings, turn, _Place(index, index == len(messages) - 1, constrained), allowance)
        for index, turn in enumerate(messages)
    ]
    data = PROMPT.record(
        SystemPrompt=settings.system_prompt,
        SuppressSystemPrompt="chat_message" not in settings.templates
        and any(turn.role == "system" and turn.content for turn in messages),
        Input=settings.joined_by.join(piece for piece in rendered if piece is not None),
        Functions=offered.functions,
        **extras,
    )
    name = "function" if offered.used and "function" in settings.templates else "chat"
    return _rendered(settings, name, data, allowance)


def _rendered(settings: PromptSettings, name: str, data: StructValue, allowance: Allowance) -> str:
    """Render the template of that name; without one, the input is the prompt."""
    source = settings.templates.get(name)
    return execute(parse(source, name), data, allowance) if source else str(data.fields["Input"])


class _Place(NamedTuple):
    """Where a message stands in its chat."""

    number: int
    is_last: bool
    is_constrained: bool
    """Whether a grammar limits the answer."""


def _rendered_turn(settings: PromptSettings, turn: Turn, place: _Place, allowance: Allowance) -> str | None:
    """Render a message. None: its template made nothing of it, and it is left out."""
    calls = turn.function_call is not None or turn.tool_calls is not None
    is_call = calls and turn.role == "assistant" and settings.roles.get("assistant_function_call")
    role = "assistant_function_call" if is_call else turn.role
    prefix = settings.roles.get(role, "")
    source = settings.templates.get("chat_message")
    if not source:
        return _plain_turn(turn, prefix)
    data = CHAT_MESSAGE.record(
        SystemPrompt=settings.system_prompt,
        Role=prefix,
        RoleName=role,
        FunctionName=turn.name,
        Content=turn.content,
        MessageIndex=place.number,
        Function=place.is_constrained and place.is_last,
        FunctionCall=turn.tool_calls or turn.function_call,
        LastMessage=place.is_last,
    )
    return execute(parse(source, "chat_message"), data, allowance) or None


def _plain_turn(turn: Turn, prefix: str) -> str:
    """Return the role's prefix and the content, then calls as JSON; without content only the last of these."""
    pieces = [prefix + turn.content] if turn.content else []
    for call in (turn.function_call, turn.tool_calls):
        if call is not None:
            pieces = pieces if turn.content else []
            pieces.append((f"{prefix} " if prefix else "") + json_text(call, JsonStyle()))
    return "\n".join(pieces)


# Tools.


def offered_tools(settings: PromptSettings, request: Request) -> OfferedTools:
    """Decide which functions the templates see, and whether the template for functions is taken."""
    functions = _functions(request)
    mode, name = _choice(request)
    used = bool(functions) and (mode != "none" or bool(name))
    strict = any(isinstance(function, StructValue) and function.fields["Strict"] for function in functions)
    by_grammar = used and (not settings.grammar_disabled or strict)
    if by_grammar and not (settings.no_action_disabled or strict or mode == "required"):
        functions = [*functions, _no_action(settings)]
    if name and functions:
        functions = _selected(functions, name)
    elif mode == "none":
        functions = NilSlice()
    return OfferedTools(functions=functions, used=used, constrained=by_grammar or _has_grammar(request))


def _functions(request: Request) -> list[object]:
    legacy = request.get("functions")
    tools = items(request.get("tools"), "tools")
    functions: list[object] = [*template_data.functions(legacy, "functions")]
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        functions.append(FUNCTION.from_json(mapping(tool, where).get("function"), f"{where}.function"))
    return functions if functions or legacy is not None else NilSlice()


def _no_action(settings: PromptSettings) -> StructValue:
    return FUNCTION.record(
        Name=settings.no_action_name,
        Description=settings.no_action_description,
        Parameters=template_data.anything(_NO_ACTION_PARAMETERS, ""),
    )


def _selected(functions: Sequence[object], name: str) -> list[object]:
    chosen: list[object] = [each for each in functions if isinstance(each, StructValue) and each.fields["Name"] == name]
    if not chosen:
        raise InvalidInput("tool_choice", f"there is no tool {name!r}")
    return chosen[:1]


def _choice(request: Request) -> tuple[str, str]:
    """Return the mode and the name of the function that the request demands; either is empty, or both."""
    choice = request.get("tool_choice")
    if isinstance(choice, str) and choice.strip().startswith("{"):
        choice = _json_or_none(choice)
    if isinstance(choice, dict) and (name := _chosen_name(choice)):
        return "", name
    if isinstance(choice, str) and choice not in ("", "auto"):
        return choice, ""
    call = request.get("function_call")
    if isinstance(call, dict):
        return "", text(call.get("name"), "function_call.name")
    return text(call, "function_call"), ""


def _chosen_name(choice: Mapping[str, object]) -> str:
    """Return the name in OpenAI's form, or in the older one without `function`."""
    if choice.get("type") != "function":
        return ""
    function = mapping(choice.get("function"), "tool_choice.function")
    return text(function.get("name") or choice.get("name"), "tool_choice.function.name")


def _json_or_none(source: str) -> object:
    try:
        return json.loads(source)
    except (ValueError, RecursionError):
        return None


def _has_grammar(request: Request) -> bool:
    form = request.get("response_format")
    by_form = isinstance(form, dict) and form.get("type") in ("json_object", "json_schema")
    return by_form or bool(request.get("grammar")) or request.get("grammar_json_functions") is not None


# Completions and edits.


def render_completions(settings: PromptSettings, request: Request) -> list[str]:
    """Render each prompt of a completion."""
    extras = {
        "ReasoningEffort": text(request.get("reasoning_effort"), "reasoning_effort") or settings.reasoning_effort,
        "Metadata": template_data.metadata(request.get("metadata"), "metadata"),
    }
    data = [_prompt_data(settings, prompt, **extras) for prompt in _texts(request.get("prompt"), "prompt")]
    return _rendered_each(settings, "completion", data)


def render_edits(settings: PromptSettings, request: Request) -> list[str]:
    """Render each input of an edit."""
    instruction = text(request.get("instruction"), "instruction")
    inputs = _texts(request.get("input"), "input")
    data = [_prompt_data(settings, each, Instruction=instruction) for each in inputs]
    return _rendered_each(settings, "edit", data)


def _rendered_each(settings: PromptSettings, name: str, data: Sequence[StructValue]) -> list[str]:
    allowance = Allowance(MOST_WORK_FOR_A_REQUEST)
    return [_rendered(settings, name, each, allowance) for each in data]


def _prompt_data(settings: PromptSettings, prompt: str, **fields: object) -> StructValue:
    return PROMPT.record(SystemPrompt=settings.system_prompt, Input=prompt, **fields)


def _texts(value: object, where: str) -> list[str]:
    values = value if is_list(value) else [value]
    if not values or any(each is None for each in values):
        raise InvalidInput(where, "must be a text or a list of texts")
    return [text(each, where) for each in values]
