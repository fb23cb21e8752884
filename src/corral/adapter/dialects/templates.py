"""Renders prompts from messages of the gRPC contract, for backends that do not know their model's format. Pure.

The templates' language, and what LocalAI gives to them, is in `corral.templates`.
"""

import json
from collections.abc import Sequence

from corral.rpc.messages import Message
from corral.templates.prompts import OfferedTools, PromptSettings, Turn, render_completions, render_turns
from corral.templates.template_data import tool_calls
from corral.wire.adapter import PromptTemplates


def render_chat(messages: Sequence[Message], templates: PromptTemplates, system_prompt: str = "") -> str:
    """Render each message with its template, join them, and render the whole with the chat template. Without
    templates, join the contents."""
    settings = _settings(templates, system_prompt)
    prompt = render_turns(settings, [_turn(message) for message in messages], OfferedTools(), {})
    return prompt if templates.chat else prompt + templates.joined_by


def render_completion(prompt: str, templates: PromptTemplates, system_prompt: str = "") -> str:
    return render_completions(_settings(templates, system_prompt), {"prompt": prompt})[0]


def shows_system_prompt(templates: PromptTemplates) -> bool:
    """Return whether a template puts the model's own system prompt where it belongs. If not, it is a message."""
    return ".SystemPrompt" in templates.chat + templates.chat_message


def _settings(templates: PromptTemplates, system_prompt: str) -> PromptSettings:
    sources = {"chat": templates.chat, "chat_message": templates.chat_message, "completion": templates.completion}
    return PromptSettings(
        templates={name: source for name, source in sources.items() if source},
        joined_by=templates.joined_by,
        system_prompt=system_prompt,
    )


def _turn(message: Message) -> Turn:
    calls = json.loads(message.tool_calls) if message.tool_calls else None
    return Turn(
        role=message.role,
        name=message.name,
        content=message.content,
        tool_calls=None if calls is None else tool_calls(calls, "messages.tool_calls"),
    )
