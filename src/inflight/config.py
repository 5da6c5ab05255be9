"""Configuration: small frozen dataclasses, one per component, and the command-line flags made from their fields.

A component's dataclass lives with the component and checks its own values. Each field is one flag of the same name
(``max_num_seqs`` is ``--max-num-seqs``); its metadata holds ``help`` (what it is, with unit and range) and, where they
are few, its ``choices``. Nothing is written back: what is computed from a configuration is returned by whoever
computes it.
"""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from inflight.runtime.config import RuntimeConfig
from inflight.schedulers.config import ContinuousConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The engine: its model, and the configurations of its parts."""

    model: str | None = field(
        default=None,
        metadata={"help": "a folder (safetensors or GGUF), a .gguf file or a hub name; absent: the built-in model"},
    )
    step_log: Path | None = field(
        default=None, metadata={"help": "write every decision to this file (JSON lines; holds the prompts' token ids)"}
    )
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    scheduler: ContinuousConfig = field(default_factory=ContinuousConfig)


def add_flags(parser: argparse.ArgumentParser, config: type, positional: tuple[str, ...] = ()) -> None:
    """Add a flag for each field of a configuration and of its parts; the fields in ``positional`` take no ``--``.

    A flag that is not given leaves nothing in the namespace: the defaults are the dataclasses' alone.
    """
    groups: dict[type, Any] = {}
    for owner, one in options_of(config):
        help_text = one.metadata["help"].replace("%", "%%")
        if one.name in positional:
            parser.add_argument(one.name, nargs="?", default=argparse.SUPPRESS, help=help_text)
            continue
        if owner not in groups:
            groups[owner] = parser.add_argument_group(_title(owner))
        if one.default not in (None, ()):
            help_text += f" (default: {one.default})"
        hint = typing.get_type_hints(owner)[one.name]
        groups[owner].add_argument(
            flag(one.name), default=argparse.SUPPRESS, help=help_text, **_argparse_options(hint, one)
        )


def flag(field_name: str) -> str:
    """The flag that sets a field."""
    return "--" + field_name.replace("_", "-")


def from_args(config: type[T], args: argparse.Namespace) -> T:
    """Build a configuration from parsed flags; values that are not its own are left alone.

    Raises ``ValueError`` for a value out of range.
    """
    return from_values(config, given_values(config, args))


def given_values(config: type, args: argparse.Namespace) -> dict[str, Any]:
    """The values of a configuration's flags that were given."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(args).items()}
    return {one.name: given[one.name] for _, one in options_of(config) if one.name in given}


def from_values(config: type[T], values: Mapping[str, Any]) -> T:
    """Build a configuration from values by field name, its own and its parts'; the others keep their defaults.

    Raises ``TypeError`` for a name that is no field, ``ValueError`` for a value out of range.
    """
    owners = {one.name: owner for owner, one in options_of(config)}
    if unknown := [name for name in values if name not in owners]:
        raise TypeError(f"unknown option {unknown[0]!r}; the options are: {', '.join(sorted(owners))}")
    arguments = {name: value for name, value in values.items() if owners[name] is config}
    for one, part in _parts(config):
        arguments[one.name] = part(**{name: value for name, value in values.items() if owners[name] is part})
    return config(**arguments)


def _parts(config: type) -> Iterator[tuple[Field[Any], type]]:
    """The fields of a configuration that hold the configuration of a component."""
    hints = typing.get_type_hints(config)
    for one in fields(config):
        if is_dataclass(hints[one.name]):
            yield one, typing.cast(type, hints[one.name])


def options_of(config: type) -> Iterator[tuple[type, Field[Any]]]:
    """Every option of a configuration and of its parts as (its dataclass, its field)."""
    parts = dict(_parts(config))
    yield from ((config, one) for one in fields(config) if one not in parts)
    for part in parts.values():
        yield from ((part, one) for one in fields(part))


def _title(config: type) -> str:
    return (config.__doc__ or config.__name__).split(".", 1)[0]


def _argparse_options(hint: Any, one: Field[Any]) -> dict[str, Any]:
    """What ``add_argument`` needs to know to read one field of type ``hint``."""
    options: dict[str, Any] = {}
    choices = one.metadata.get("choices")
    optional = isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)
    if optional:
        (hint,) = (kind for kind in typing.get_args(hint) if kind is not type(None))
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is tuple:
        options |= {"nargs": "+", "action": "extend"}
        hint = typing.get_args(hint)[0]
    if choices:
        options["choices"] = choices
    options["type"] = _reader(hint, optional)
    options["metavar"] = None if choices else one.name.rsplit("_", 1)[-1].upper()
    return options


def _reader(kind: type, optional: bool) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        return None if optional and text.lower() == "none" else kind(text)

    read.__name__ = kind.__name__  # what argparse calls the type when it refuses a value
    return read
