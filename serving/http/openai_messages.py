"""The messages of a chat, and how they become what a chat template reads: plain data with text as content."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from serving.http.errors import BadRequest

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ContentPart(msgspec.Struct, frozen=True):
    """Of these, text alone is served."""

    type: str
    text: str | None = None


class ToolFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(msgspec.Struct, frozen=True):
    function: ToolFunction
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct, frozen=True):
    role: Role
    content: str | Annotated[list[ContentPart], Meta(max_length=1024)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None


Messages = Annotated[list[Message], Meta(min_length=1, max_length=10_000)]


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    return [_plain(message, place) for place, message in enumerate(messages)]


def _plain(message: Message, place: int) -> dict[str, Any]:
    # Templates know the older of the two names.
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": _text(message.content, place)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        plain["tool_calls"] = [_tool_call(call, place) for call in message.tool_calls]
    elif message.content is None:
        where = f"messages[{place}].content"
        raise BadRequest(f"{where}: missing; a text is needed", param=where)
    return plain


def _text(content: str | list[ContentPart] | None, place: int) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(content or ()):
        where = f"messages[{place}].content[{number}]"
        if part.type != "text":
            raise BadRequest(f"{where}.type: {part.type[:50]!r}; only text is served", param=f"{where}.type")
        if part.text is None:
            raise BadRequest(f"{where}.text: missing; it is required", param=f"{where}.text")
        texts.append(part.text)
    return "\n".join(texts)


def _tool_call(call: ToolCall, place: int) -> dict[str, Any]:
    """Templates want the arguments as an object; clients send them as JSON text."""
    arguments: Any = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            where = f"messages[{place}].tool_calls"
            raise BadRequest(f"{where}: arguments are not valid JSON", param=where) from None
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
