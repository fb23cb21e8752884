"""What can be wrong with a template: its text, or what it does with the values of one request."""

from corral.base.errors import CorralError


class TemplateRefused(CorralError):
    """The template cannot be used."""

    code = "template_refused"

    def __init__(self, template: str, line: int, problem: str) -> None:
        self.template = template
        self.line = line
        """Within the template, from 1."""
        self.problem = problem
        super().__init__(f"template {template}, line {line}: {problem}", template=template, line=line)

    @property
    def key(self) -> str:
        """Where a model's configuration has the template."""
        return f"template.{self.template}"


class TemplateFailed(CorralError):
    """The template cannot be rendered with these values."""

    code = "template_failed"

    def __init__(self, template: str, line: int, expression: str, problem: str) -> None:
        self.template = template
        self.line = line
        self.expression = expression
        self.problem = problem
        where = f"template {template}, line {line}" + (f", {{{{{expression}}}}}" if expression else "")
        super().__init__(f"{where}: {problem}", template=template, line=line)


class ValueProblem(Exception):
    """A function or an operation cannot work with the values that it got. The evaluation adds the place."""
