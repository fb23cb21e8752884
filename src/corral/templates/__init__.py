"""Prompt templates: the part of Go's text/template that models use, and requests rendered as LocalAI does. Pure.

`lexer.py`, `parser.py` and `evaluate.py` are the language, `values.py`, `printing.py` and `functions.py` its values and
functions; `template_data.py`, `turns.py` and `prompts.py` know what LocalAI gives to templates, `prompt_lines.py`
answers people who try them. A template that needs more than is here is refused with its line when a model is added, and
one that fails with a request is an error: never half a prompt.
"""

from corral.templates.advice import TemplateAdvice, advice
from corral.templates.errors import TemplateFailed, TemplateRefused
from corral.templates.evaluate import execute
from corral.templates.parser import ParsedTemplate, parse
from corral.templates.prompt_lines import prompt_line
from corral.templates.prompts import (
    PromptSettings,
    has_place_for_tools,
    refusals,
    render_chat,
    render_completions,
    render_edits,
    template_problem,
)

__all__ = [
    "ParsedTemplate",
    "PromptSettings",
    "TemplateAdvice",
    "TemplateFailed",
    "TemplateRefused",
    "advice",
    "execute",
    "has_place_for_tools",
    "parse",
    "prompt_line",
    "refusals",
    "render_chat",
    "render_completions",
    "render_edits",
    "template_problem",
]
