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
from inflight.schedulers.registry import CONFIGS as SCHEDULERS
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
    sizes: tuple[int, ...] = field(default=(), metadata={"help": "sizes"})


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
    sizes=st.lists(st.integers(), min_size=1).map(tuple),
)


def parse(config: type, argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_flags(parser, config)
    return parser.parse_args(argv)


def argv_of(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag(name) if value else flag("no_" + name)]
    if isinstance(value, tuple) and isinstance(value[0], int):
        return [f"{flag(name)}={','.join(map(str, value))}"]
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
    if one.name == "slo":
        return ("ttft:0.5", "e2el:5")
    if typing.get_origin(hint) is tuple:
        return (2, 4) if typing.get_args(hint)[0] is int else ("one", "two")
    if float in kinds:
        return 0.5 if one.default is None else one.default * 0.875 if one.default else 0.25
    if int in kinds:
        return 64 if one.default is None else one.default * 2 or 1
    return typing.cast(type, kinds.pop())("other")


@pytest.mark.parametrize(
    ("config", "owner", "one"),
    [option for option in OPTIONS if "families" not in option[2].metadata],  # that flag has a test of its own
    ids=lambda value: getattr(value, "name", None),
)
def test_every_field_is_reached_by_its_flag(config: type, owner: type, one: Any) -> None:
    value = other_value(owner, one)
    of_family = next((name for name, family in SCHEDULERS.items() if issubclass(family, owner)), "continuous")
    family = ["--scheduler", of_family] if config is EngineConfig else []
    built = from_args(config, parse(config, family + argv_of(one.name, value)))
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


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_flag_chooses_the_family_of_the_scheduler(name: str) -> None:
    built = from_args(EngineConfig, parse(EngineConfig, ["--scheduler", name, "--max-model-len", "77"]))
    assert built.scheduler == SCHEDULERS[name](max_model_len=77)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_wait_ms": 5.0}, "max_wait_ms is an option for dynamic batching"),
        ({"scheduler": "dynamic", "batch_size": 5}, "batch_size is an option for static batching"),
        ({"scheduler": "static", "max_num_seqs": 5}, "max_num_seqs is an option for continuous batching"),
        ({"padding": False}, "padding is an option for request-level batching"),
        ({"scheduler": "gang"}, "scheduler must be one of continuous, static, dynamic, got 'gang'"),
        ({"scheduler": "static", "batch_size": 0}, "batch_size must be a whole number"),
        ({"scheduler": "static", "fill_timeout_ms": -1.0}, "fill_timeout_ms must be in"),
        ({"scheduler": "dynamic", "max_wait_ms": float("nan")}, "max_wait_ms must be in"),
        ({"scheduler": "dynamic", "max_batch_size": 4, "preferred_batch_size": (5,)}, "must not exceed max_batch_size"),
        ({"scheduler": "dynamic", "length_bins": (0, 4)}, "length_bins must be a whole number"),
        ({"scheduler": "dynamic", "max_tokens_in_batch": 0}, "max_tokens_in_batch must be a whole number"),
        ({"scheduler": "dynamic", "max_tokens_in_batch": 1}, "one token in and one out"),
        ({"scheduler": "dynamic", "max_num_waiting_seqs": 2}, "at least max_batch_size .8.: a batch fills"),
        ({"scheduler": "static", "max_num_waiting_seqs": 2}, "at least batch_size .8.: a batch fills"),
        ({"kv_allocator": "heap"}, "kv_allocator must be one of"),
    ],
)
def test_a_scheduler_that_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_values(EngineConfig, values)


def test_limits_that_depend_on_the_model_stay_open() -> None:
    config = from_values(EngineConfig, {"max_num_seqs": 512})
    assert (config.scheduler.max_num_batched_tokens, config.scheduler.max_model_len) == (None, None)
