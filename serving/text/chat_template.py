"""A model's chat template: messages in, the prompt's text out. A template is a program from outside: it runs in
jinja2's sandbox, sees plain data, and what it prints is bounded. Knows nothing of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from placement.errors import InputError

MAX_CHARACTERS = 16 * 2**20
_LONGEST_REASON = 300


class ChatTemplate:
    """The templates of one model, compiled; an InputError names what is wrong with `where` (the model's directory)."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str], where: str) -> None:
        self._special_tokens = dict(special_tokens)
        self._where = where
        environment = _environment()
        self._templates = {name: self._compile(environment, name, source) for name, source in sources.items()}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """The prompt; `variables` are further names the template may know, such as enable_thinking."""
        template = self._choose(tools)
        known = {"documents": None, **self._special_tokens, **variables}
        known |= {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        parts: list[str] = []
        size = 0
        try:
            for part in template.generate(known):
                parts.append(part)
                size += len(part)
                if size > MAX_CHARACTERS:
                    raise InputError(f"chat template: the prompt is longer than {MAX_CHARACTERS} characters")
        except InputError:
            raise
        except _RefusedError as refusal:
            raise InputError(f"chat template: {_one_line(refusal)}") from refusal
        except Exception as error:  # a foreign program can raise anything
            raise InputError(f"chat template: fails on these messages: {_one_line(error)}") from error
        return "".join(parts)

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> Template:
        templates = self._templates
        if not templates:
            raise InputError(
                f"{self._where}: the model has no chat template; add chat_template.jinja, or send a plain prompt"
            )
        if tools is not None and "tool_use" in templates:
            return templates["tool_use"]
        if "default" not in templates:
            raise InputError(
                f"{self._where}: no chat template is named default; there are {', '.join(sorted(templates))}"
            )
        return templates["default"]

    def _compile(self, environment: ImmutableSandboxedEnvironment, name: str, source: str) -> Template:
        try:
            return environment.from_string(source)
        except TemplateSyntaxError as error:
            raise InputError(f"{self._where}: chat template {name}, line {error.lineno}: {_one_line(error)}") from error


class _RefusedError(TemplateError):
    """The template itself says what is wrong with the messages."""


class _Generation(Extension):
    """{% generation %} marks what an assistant wrote, for training; here its body is plain text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own form

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    """What templates written for Hugging Face's tokenizers expect to find."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
    del environment.globals["lipsum"]  # makes as much text as it is asked for
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own, leaves <, >, & and letters beyond ASCII as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _one_line(error: Exception) -> str:
    name = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    line = " ".join(f"{name}{error}".split())
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."
