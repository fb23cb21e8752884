"""How requests that cannot be answered as they are written are refused. Pure."""

import json
from typing import Any

Body = dict[str, Any]


class Refused(Exception):
    """The request cannot be answered as it is written; `param` is the field."""

    def __init__(self, param: str, message: str, *, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code

    def document(self) -> bytes:
        """The body of an answer with status 400, in OpenAI's shape."""
        told = {"message": f"{self.param}: {self}", "type": "invalid_request_error", "param": self.param}
        return json.dumps({"error": {**told, "code": self.code}}).encode()


def check_tools(tools: Any, *, own_types: tuple[str | None, ...]) -> list[str]:
    """Return the names of tools that a client runs itself. Refused names the first that is another one."""
    if not isinstance(tools, list):
        raise Refused("tools", "must be a list")
    names = []
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise Refused(place, "must be an object")
        if tool.get("type") not in own_types:
            raise Refused(f"{place}.type", f"{tool.get('type')} is not offered: only tools that you run yourself are")
        if not isinstance(tool.get("name"), str) or not tool["name"]:
            raise Refused(f"{place}.name", "must be a text")
        names.append(tool["name"])
    return names


def check_place_for_tools(*, offers_tools: bool) -> None:
    if not offers_tools:
        told = "the template of this model has no place for tools"
        raise Refused("tools", told, code="unsupported_by_model")


def named_tool(body: Body, names: list[str], name: Any) -> list[Any]:
    """Return the tool of that name as the only one. Refused when there is none."""
    if name not in names:
        raise Refused("tool_choice", f"names {name}, which is not among the tools")
    return [body["tools"][names.index(name)]]
