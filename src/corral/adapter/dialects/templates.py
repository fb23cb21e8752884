"""Renders prompts for backends that do not know their model's format, as `corral models prompt` shows them. Pure.

The templates' language, and what LocalAI gives to them, is in `corral.templates`.
"""

from collections.abc import Sequence

import msgspec

from corral.adapter.dialects.requests import ChatRequest
from corral.base.errors import InvalidInput
from corral.templates import PromptSettings, has_place_for_tools, render_chat, render_completions, render_edits
from corral.templates.prompts import NO_ACTION, NO_ACTION_DESCRIPTION, TEMPLATES
from corral.wire.adapter import AdapterModel


def prompt_settings(model: AdapterModel) -> PromptSettings:
    """What the model's configuration says about prompts."""
    given = model.templates
    sources = {name: getattr(given, name) for name in TEMPLATES}
    return PromptSettings(
        templates={name: source for name, source in sources.items() if source},
        use_tokenizer_template=model.use_tokenizer_template,
        joined_by=given.joined_by,
        roles=given.roles,
        system_prompt=model.system_prompt,
        reasoning_effort=model.reasoning_effort,
        grammar_disabled=given.grammar_disabled,
        no_action_disabled=given.no_action_disabled,
        no_action_name=given.no_action_name or NO_ACTION,
        no_action_description=given.no_action_description or NO_ACTION_DESCRIPTION,
    )


def chat_prompt(request: ChatRequest, model: AdapterModel) -> str:
    """Render a chat. InvalidInput: it has tools, and no template has a place for them. TemplateFailed says why not."""
    settings = prompt_settings(model)
    if request.tools and request.tool_choice != "none" and not has_place_for_tools(settings):
        raise InvalidInput("tools", "the prompt templates of this model have no place for them")
    return render_chat(settings, msgspec.to_builtins(request))


def completion_prompts(prompts: Sequence[str], model: AdapterModel) -> list[str]:
    return render_completions(prompt_settings(model), {"prompt": list(prompts)})


def edit_prompts(inputs: Sequence[str], instruction: str, model: AdapterModel) -> list[str]:
    """Render each text that shall be edited, behind the instruction where no template says otherwise."""
    if not model.templates.edit:  # LocalAI sends the text alone then, and the model never hears what to do with it
        return [f"{instruction}\n\n{text}" for text in inputs]
    return render_edits(prompt_settings(model), {"input": list(inputs), "instruction": instruction})
