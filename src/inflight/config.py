"""Configuration: small frozen dataclasses, one per component, and the command-line flags made from their fields.

A component's dataclass lives with the component and checks its own values. Each field is one flag of the same name
(``max_num_seqs`` is ``--max-num-seqs``); its metadata holds ``help`` (what it is, with unit and range) and, where they
are few, its ``choices``. A part that is one of several, such as the scheduler, has them by name in ``families``: its
own flag chooses one, and a flag of another is an error. Nothing is written back: what is computed from a configuration
is returned by whoever computes it.
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
from inflight.schedulers.config import ContinuousConfig, SchedulerConfig
from inflight.schedulers.registry import CONFIGS

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """The model, and how it is loaded."""

    model: str | None = field(
        default=None,
        metadata={"help": "a folder (safetensors or GGUF), a .gguf file or a hub name; absent: the built-in model"},
    )
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(LoadConfig):
    """The engine: its model, and the configurations of its parts."""

    step_log: Path | None = field(
        default=None, metadata={"help": "write every decision to this file (JSON lines; holds the prompts' token ids)"}
    )
    scheduler: SchedulerConfig = field(
        default_factory=ContinuousConfig,
        metadata={"help": "how requests share forward passes", "families": CONFIGS},
    )


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
        default = next(iter(_families(one)), one.default)
        if default not in (None, ()):
            help_text += f" (default: {default})"
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

    Raises ``TypeError`` for a name that is no field, ``ValueError`` for a value out of range, and for an option of
    another family than the one chosen.
    """
    options = sorted(one.name for _, one in options_of(config))
    if unknown := [name for name in values if name not in options]:
        raise TypeError(f"unknown option {unknown[0]!r}; the options are: {', '.join(options)}")
    arguments: dict[str, Any] = {}
    taken: set[str] = set()
    for one in fields(typing.cast(Any, config)):
        part = _part(config, one, values)
        if part is not None:
            own = {name: value for name, value in values.items() if name in {each.name for each in fields(part)}}
            arguments[one.name] = part(**own)
            taken |= own.keys() | {one.name}
        elif one.name in values:
            arguments[one.name] = values[one.name]
            taken.add(one.name)
    for owner, one in options_of(config):
        if one.name in values and one.name not in taken:
            raise ValueError(f"{one.name} is an option for {_title(owner).lower()}, which was not chosen")
    return config(**arguments)


def options_of(config: type) -> Iterator[tuple[type, Field[Any]]]:
    """Every option of a configuration and of its parts as (the dataclass that declares it, its field)."""
    parts: list[type] = []
    for one in fields(config):
        if families := _families(one):
            yield config, one
            parts += families.values()
        elif (part := _part(config, one, {})) is not None:
            parts.append(part)
        else:
            yield config, one
    seen: set[str] = set()
    for part in parts:
        for one in fields(part):
            if one.name not in seen:
                seen.add(one.name)
                yield _declaring(part, one.name), one


def _families(one: Field[Any]) -> Mapping[str, type]:
    """What a part can be, by name, the default first; empty for all other fields."""
    families: Mapping[str, type] = one.metadata.get("families", {})
    return families


def _part(config: type, one: Field[Any], values: Mapping[str, Any]) -> Any:
    """The configuration class that a field holds, ``values`` choosing among families; ``None`` for a plain value."""
    if families := _families(one):
        name = values.get(one.name, next(iter(families)))
        if name not in families:
            raise ValueError(f"{one.name} must be one of {', '.join(families)}, got {name!r}")
        return families[name]
    hint = typing.get_type_hints(config)[one.name]
    return hint if is_dataclass(hint) else None


def _declaring(part: type, name: str) -> type:
    return next(base for base in reversed(part.__mro__) if name in getattr(base, "__annotations__", {}))


def _title(config: type) -> str:
    return (config.__doc__ or config.__name__).split(".", 1)[0].split(":", 1)[0]


def _argparse_options(hint: Any, one: Field[Any]) -> dict[str, Any]:
    """What ``add_argument`` needs to know to read one field of type ``hint``."""
    if families := _families(one):
        return {"choices": tuple(families)}
    options: dict[str, Any] = {}
    choices = one.metadata.get("choices")
    optional = isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)
    if optional:
        (hint,) = (kind for kind in typing.get_args(hint) if kind is not type(None))
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is tuple:
        kind = typing.get_args(hint)[0]
        if kind is int:
            return {"type": _whole_numbers, "metavar": "N,N"}
        options |= {"nargs": "+", "action": "extend"}
        hint = kind
    if choices:
        options["choices"] = choices
    options["type"] = _reader(hint, optional)
    options["metavar"] = None if choices else one.name.rsplit("_", 1)[-1].upper()
    return options


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


_whole_numbers.__name__ = "list of whole numbers"  # what argparse calls the type when it refuses a value


def _reader(kind: type, optional: bool) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        return None if optional and text.lower() == "none" else kind(text)

    read.__name__ = kind.__name__  # what argparse calls the type when it refuses a value
    return read
