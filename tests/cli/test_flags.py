"""Flags are made from the fields of configuration dataclasses: none is missing, none means something else."""

import argparse
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.config import EngineConfig, add_flags, flag, from_args, from_values, options_of
from inflight.engine.process import ProcessConfig
from inflight.server.config import ServerConfig

CONFIGS = (EngineConfig, ProcessConfig, ServerConfig)
OPTIONS = [(config, owner, one) for config in CONFIGS for owner, one in options_of(config)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One field of each kind."""

    count: int = field(default=1, metadata={"help": "a count"})
    ratio: float = field(default=0.5, metadata={"help": "50 % of it"})
    name: str | None = field(default=None, metadata={"help": "a name"})
    limit: int | None = field(default=7, metadata={"help": "a limit"})
    where: Path | None = field(default=None, metadata={"help": "a file"})
    fast: bool = field(default=True, metadata={"help": "fast"})
    kind: str = field(default="a", metadata={"help": "a kind", "choices": ("a", "b")})
    keys: tuple[str, ...] = field(default=(), metadata={"help": "keys"})


words = st.text("abcxyz0189", min_size=1).filter(lambda word: word != "none")
samples = st.builds(
    Sample,
    count=st.integers(),
    ratio=st.floats(allow_nan=False),
    name=st.none() | words,
    limit=st.none() | st.integers(),
    where=st.none() | words.map(Path),
    fast=st.booleans(),
    kind=st.sampled_from(["a", "b"]),
    keys=st.lists(words, min_size=1).map(tuple),
)


def parse(config: type, argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_flags(parser, config)
    return parser.parse_args(argv)


def argv_of(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag(name) if value else flag("no_" + name)]
    if isinstance(value, tuple):
        return [flag(name), *map(str, value)]
    return [f"{flag(name)}={'none' if value is None else value}"]


@given(samples)
def test_what_is_written_as_flags_is_what_is_read(sample: Sample) -> None:
    argv = [text for one in fields(Sample) for text in argv_of(one.name, getattr(sample, one.name))]
    assert from_args(Sample, parse(Sample, argv)) == sample


def other_value(owner: type, one: Any) -> Any:
    """A valid value of a field that is not its default."""
    hint = typing.get_type_hints(owner)[one.name]
    kinds = {kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)}
    if choices := one.metadata.get("choices"):
        return next(choice for choice in choices if choice != one.default)
    if bool in kinds:
        return not one.default
    if typing.get_origin(hint) is tuple:
        return ("one", "two")
    if float in kinds:
        return 0.5 if one.default is None else one.default * 0.75 if one.default else 0.25
    if int in kinds:
        return 64 if one.default is None else one.default * 2 or 1
    return typing.cast(type, kinds.pop())("other")


@pytest.mark.parametrize(("config", "owner", "one"), OPTIONS, ids=lambda value: getattr(value, "name", None))
def test_every_field_is_reached_by_its_flag(config: type, owner: type, one: Any) -> None:
    value = other_value(owner, one)
    built = from_args(config, parse(config, argv_of(one.name, value)))
    holders = [built, *(getattr(built, name.name) for name in fields(config))]
    (found,) = [getattr(holder, one.name) for holder in holders if isinstance(holder, owner)]
    assert found == value
    assert found != one.default


@pytest.mark.parametrize(("config", "owner", "one"), OPTIONS, ids=lambda value: getattr(value, "name", None))
def test_every_field_says_what_it_is(config: type, owner: type, one: Any) -> None:
    assert len(one.metadata["help"]) > 10


def test_no_two_fields_share_a_flag_and_help_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    for config in CONFIGS:
        add_flags(parser, config)  # argparse raises where two are alike
    parser.print_help()
    shown = capsys.readouterr().out
    assert all(flag(one.name) in shown for _, _, one in OPTIONS)


@pytest.mark.parametrize("config", [*CONFIGS, Sample])
def test_without_flags_the_defaults_are_the_dataclasses_own(config: type) -> None:
    built = from_args(config, parse(config, []))
    assert built == config()


def test_an_unknown_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        parse(EngineConfig, ["--max-num-seks", "3"])
    assert exited.value.code == 2
    assert "--max-num-seks" in capsys.readouterr().err


def test_an_unknown_value_is_named() -> None:
    with pytest.raises(TypeError, match="max_num_seks"):
        from_values(EngineConfig, {"max_num_seks": 3})


@pytest.mark.parametrize(
    "values",
    [{"max_num_seqs": 0}, {"max_model_len": 0}, {"max_num_batched_tokens": 1}, {"scheduling_policy": "sjf"}],
    ids=str,
)
def test_a_value_out_of_range_is_refused_before_a_model_is_loaded(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        from_values(EngineConfig, values)


def test_limits_that_depend_on_the_model_stay_open() -> None:
    config = from_values(EngineConfig, {"max_num_seqs": 512})
    assert (config.scheduler.max_num_batched_tokens, config.scheduler.max_model_len) == (None, None)
