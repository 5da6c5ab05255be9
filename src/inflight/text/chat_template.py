"""Chat templates: a model's own Jinja program that turns messages into a prompt.

The environment is the one that transformers documents for ``apply_chat_template``, sandboxed, because a template
comes with the model and is a program of a stranger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from inflight.core.errors import Reason, Rejected


class ChatTemplate:
    """A template, compiled when it is first used; ``source`` is None for a model that has none."""

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        """The prompt for ``messages``. Raises ``Rejected``."""
        plain = [_plain_message(index, message) for index, message in enumerate(messages)]
        if not plain:
            raise _rejected("messages is empty")
        try:
            return self._template.render(
                **self._special_tokens,
                messages=plain,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except Rejected:
            raise
        except Exception as error:  # a stranger's program over a caller's data may raise anything
            raise _rejected(f"the model's chat template refused the messages: {error}") from error

    @cached_property
    def _template(self) -> jinja2.Template:
        if self._source is None:
            raise _rejected("this model has no chat template: use a completion with a plain prompt")
        try:
            return _environment().from_string(self._source)
        except jinja2.TemplateSyntaxError as error:
            raise _rejected(f"the model's chat template does not compile: {error}") from error


def _rejected(message: str) -> Rejected:
    return Rejected(Reason.INVALID, message, "messages")


def _plain_message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without its null fields and with its content as one string."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise _rejected(f"messages[{index}] must be an object with a role, a string")
    plain = {key: value for key, value in message.items() if value is not None}
    content = plain.get("content")
    if isinstance(content, list | tuple):
        plain["content"] = "\n".join(_part_text(index, part) for part in content)
    elif content is not None and not isinstance(content, str):
        raise _rejected(f"messages[{index}].content must be a string or a list of text parts")
    return plain


def _part_text(index: int, part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and kind == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    raise _rejected(
        f'messages[{index}].content has a part of type {kind!r}: only {{"type": "text", "text": "..."}} is supported'
    )


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it renders what it encloses."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_string: str) -> str:
    return datetime.now().strftime(format_string)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
