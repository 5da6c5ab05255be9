"""The laws of drawing: distributions, support sets, penalties, seeds."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from inflight.core.output import NewSequence, SampledToken
from inflight.core.request import SamplingParams
from inflight.runtime.draw import uniform
from inflight.runtime.forward import StepLogits
from inflight.runtime.sampler import SamplerRow, UnusableLogits, sample

LOGITS = [2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 3.0, -4.0]


def row(
    prompt: Sequence[int] = (1,),
    output: Sequence[int] = (),
    choice: int = 0,
    eos: tuple[int, ...] = (),
    **settings: Any,
) -> SamplerRow:
    sampling = SamplingParams(**({"seed": 0, "max_tokens": None} | settings))
    return SamplerRow(NewSequence(("r", choice), tuple(prompt), sampling, eos), [*prompt, *output])


def draw(logits: Sequence[float], rows: Sequence[SamplerRow]) -> list[Any]:
    return sample(StepLogits.of(torch.tensor([list(logits)] * len(rows)), len(rows)), rows)


def tokens_of(logits: Sequence[float], num: int, **settings: Any) -> list[int]:
    """Draws at ``num`` positions."""
    return [token.token_id for token in draw(logits, [row(output=[0] * i, **settings) for i in range(num)])]


def chi_square_is_plausible(tokens: Sequence[int], probs: np.ndarray) -> bool:
    """Pearson's statistic below its mean plus 5 standard deviations: about p > 1e-5."""
    counts = np.bincount(tokens, minlength=len(probs))
    assert counts[probs == 0].sum() == 0
    likely = probs > 0
    expected = probs[likely] * len(tokens)
    freedom = likely.sum() - 1
    return bool(((counts[likely] - expected) ** 2 / expected).sum() < freedom + 5 * math.sqrt(2 * freedom) + 5)


def softmax(logits: Sequence[float], temperature: float = 1.0) -> np.ndarray:
    weights = np.exp((np.array(logits) - max(logits)) / temperature)
    return weights / weights.sum()


def truncated(probs: np.ndarray, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> np.ndarray:
    """The definition: min_p, then top_k, then top_p, each over what the one before left."""
    probs = np.where(probs >= min_p * probs.max(), probs, 0.0)
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    kept = order[: top_k or len(order)]
    mass, chosen = 0.0, []
    for token in kept:
        if mass < top_p * probs[kept].sum():
            chosen.append(token)
        mass += probs[token]
    out = np.zeros_like(probs)
    out[chosen] = probs[chosen]
    return out / out.sum()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"top_k": 3},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"top_k": 5, "top_p": 0.7, "min_p": 0.05, "temperature": 1.5},
    ],
)
def test_draws_follow_the_distribution(settings: dict[str, Any]) -> None:
    cuts = {key: value for key, value in settings.items() if key != "temperature"}
    probs = truncated(softmax(LOGITS, settings.get("temperature", 1.0)), **cuts)
    assert chi_square_is_plausible(tokens_of(LOGITS, 6000, **settings), probs)


def test_neighbouring_seeds_choices_and_positions_are_independent() -> None:
    for numbers in (
        [uniform(seed, 0, 0) for seed in range(4000)],
        [uniform(0, choice, 0) for choice in range(4000)],
        [uniform(0, 0, position) for position in range(4000)],
        [uniform(i, i, i) for i in range(4000)],
    ):
        assert all(0.0 <= number < 1.0 for number in numbers)
        assert len(set(numbers)) == len(numbers)
        assert chi_square_is_plausible([int(number * 20) for number in numbers], np.full(20, 1 / 20))
        pairs = [int(a * 4) * 4 + int(b * 4) for a, b in pairwise(numbers)]
        assert chi_square_is_plausible(pairs, np.full(16, 1 / 16))


def test_a_draw_depends_on_seed_choice_and_position_alone() -> None:
    flat = [0.0] * 1000
    rows = [row(seed=s, choice=c, output=[0] * p) for s in (-1, 0, 2**64 - 2) for c in (0, 1) for p in (0, 1, 9)]
    together = draw(flat, rows)
    assert together == [draw(flat, [one])[0] for one in rows]
    assert together[::-1] == draw(flat, rows[::-1])
    assert len({token.token_id for token in together}) > len(rows) - 3
    # The boundary between prompt and output is no part of the position.
    assert draw(flat, [row(prompt=[1, 0, 0])]) == draw(flat, [row(output=[0, 0])])
    assert draw(flat, [row(seed=None)]) == draw(flat, [row(seed=None)])


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(st.integers(-8, 8).map(float), min_size=1, max_size=12),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**64 - 1),
)
def test_truncation_keeps_what_the_definition_keeps(
    logits: list[float], top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    [token] = draw(logits, [row(top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)])
    # Half a unit of float32 either way at the border of top_p and min_p is no error.
    loose = truncated(softmax(logits), top_k, min(1.0, top_p * (1 + 1e-5)), min_p * (1 - 1e-5))
    assert loose[token.token_id] > 0
    if min_p == 1.0 or top_k == 1:
        assert logits[token.token_id] == max(logits)


def test_top_p_looks_beyond_its_first_candidates() -> None:
    tokens = tokens_of([0.0] * 5000, 400, top_p=0.9)
    assert max(tokens) < 4501
    assert min(tokens) < 300
    assert max(tokens) > 4200


@settings(max_examples=100, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 7), min_size=1, max_size=6),
    output=st.lists(st.integers(0, 7), max_size=6),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    repetition=st.floats(0.1, 3),
    bias=st.dictionaries(st.integers(0, 7), st.floats(-100, 100), max_size=3),
)
def test_penalties_and_bias_follow_their_formulas(
    prompt: list[int], output: list[int], presence: float, frequency: float, repetition: float, bias: dict[int, float]
) -> None:
    values = [logit + bias.get(token, 0.0) for token, logit in enumerate(LOGITS)]
    for token in {*prompt, *output}:
        values[token] = values[token] / repetition if values[token] > 0 else values[token] * repetition
    for token, count in Counter(output).items():
        values[token] -= presence + frequency * count
    penalties = {"presence_penalty": presence, "frequency_penalty": frequency, "repetition_penalty": repetition}
    # A temperature so low that the draw is the argmax, by the path of sampled rows; and the greedy path itself.
    for temperature in (0.0, 1e-6):
        [token] = draw(LOGITS, [row(prompt, output, temperature=temperature, logit_bias=bias, **penalties)])
        assert values[token.token_id] >= max(values) - 1e-3


def test_min_tokens_forbids_every_end_until_then() -> None:
    for eos, extra, forbidden in (
        ((6,), {}, {6}),
        ((6, 0), {"stop_token_ids": [1]}, {6, 0, 1}),
        ((6,), {"ignore_eos": True, "stop_token_ids": [0]}, {0}),
    ):
        rows = [row(output=[5] * n, eos=eos, min_tokens=2, temperature=100.0, **extra) for n in range(60)]
        tokens = [token.token_id for token in draw([0.0] * 8, rows)]
        assert not forbidden & set(tokens[:2])
        assert forbidden <= set(tokens[2:])
        best = [
            t.token_id for t in draw(LOGITS, [row(output=o, eos=eos, min_tokens=1, temperature=0.0) for o in ([], [5])])
        ]
        assert best == [0 if 0 not in eos else 1, 6]


def test_a_bad_row_fails_alone() -> None:
    logits = torch.tensor([LOGITS] * 4)
    logits[1, 3] = math.nan
    logits[2, 0] = math.inf
    rows = [row(temperature=0.0), row(), row(temperature=0.0), row()]
    results = sample(StepLogits.of(logits, len(logits)), rows)
    assert results[0] == SampledToken(6)
    assert isinstance(results[1], UnusableLogits)
    assert isinstance(results[2], UnusableLogits)
    assert results[3] == draw(LOGITS, [row()])[0]
    [everything_forbidden] = draw([0.0, 0.0], [row(eos=(0, 1), min_tokens=1)])
    assert isinstance(everything_forbidden, UnusableLogits)


def test_logprobs_are_the_models_own() -> None:
    expected = torch.log_softmax(torch.tensor(LOGITS), -1)
    settings = {"temperature": 0.3, "top_k": 1, "logit_bias": {3: 100.0}}
    plain, none, three = draw(LOGITS, [row(**settings), row(logprobs=0, **settings), row(logprobs=3, **settings)])
    assert plain == SampledToken(3)
    assert none == SampledToken(3, expected[3].item())
    assert three == SampledToken(3, expected[3].item(), tuple((i, expected[i].item()) for i in (6, 0, 1)))
    [all_of_them] = draw(LOGITS, [row(logprobs=20)])
    assert len(all_of_them.top_logprobs) == len(LOGITS)


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 1e-50},
    {"temperature": 1e-40},
    {"temperature": 5e-324},
    {"temperature": 100.0},
    {"repetition_penalty": 1e-40},
    {"repetition_penalty": 5e-324},
    {"repetition_penalty": 100.0},
    {"repetition_penalty": 1e-40, "temperature": 1e-50},
    {"repetition_penalty": 1e-50, "min_tokens": 9, "stop_token_ids": [6]},
    {"logit_bias": {6: -100.0, 1: 100.0}},
    {"logit_bias": dict.fromkeys(range(8), -100.0), "temperature": 1e-50},
    {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"presence_penalty": -2.0, "frequency_penalty": -2.0, "repetition_penalty": 1e-40},
    {"min_p": 1.0},
    {"min_p": 5e-324},
    {"top_p": 5e-324},
    {"top_k": 1},
    {"top_k": 2**31},
]


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
def test_legal_extremes_draw_a_token_and_leave_other_rows_alone(extreme: dict[str, Any], cut: dict[str, Any]) -> None:
    neighbours = [row(seed=3, top_p=0.9), row([6, 1], [2, 2], temperature=0.0, presence_penalty=1.0), row(seed=4)]
    bad = row([6, 1], [2, 6], **(cut | extreme))
    first, middle, last = (draw(LOGITS, [one])[0] for one in neighbours)
    results = draw(LOGITS, [neighbours[0], bad, neighbours[1], neighbours[2]])
    assert [results[0], results[2], results[3]] == [first, middle, last]
    assert isinstance(results[1], SampledToken)
    if "min_tokens" in extreme:
        assert results[1].token_id != 6


@pytest.mark.parametrize("temperature", [1e-50, 1e-40, 1e-30, 1e-6])
def test_temperatures_near_zero_are_greedy(temperature: float) -> None:
    near = [1.0, 1.0 + 2**-20, -3.0, 0.5]
    rows = [row(seed=seed, temperature=temperature, top_p=0.99) for seed in range(50)]
    assert {token.token_id for token in draw([1e3 * x for x in near], rows)} == {1}
    if temperature < 1e-6:
        assert {token.token_id for token in draw(near, rows)} == {1}


def test_the_likeliest_of_penalties_beyond_float32_wins() -> None:
    best = [row([6, 1], repetition_penalty=1e-37, temperature=t, seed=s) for t in (0.0, 1.0) for s in range(9)]
    assert {token.token_id for token in draw(LOGITS, best)} == {6}
    beyond = [row([6, 1], repetition_penalty=1e-50, seed=s, top_k=5) for s in range(30)]
    assert {token.token_id for token in draw([1e3 * x for x in LOGITS], beyond)} == {6, 1}  # equal: both overflow


def test_a_row_that_cannot_be_adjusted_or_drawn_fails_alone() -> None:
    outside = row(logit_bias={8: 1.0})  # the vocabulary ends at 7, which the engine checks and the sampler does not
    undrawable = row(seed=None)
    undrawable = SamplerRow(undrawable.sequence._replace(seq_id=("\ud800", 0)), undrawable.token_ids)
    good = row(seed=5)
    results = draw(LOGITS, [good, outside, undrawable, good])
    assert results[0] == results[3] == draw(LOGITS, [good])[0]
    assert isinstance(results[1], UnusableLogits)
    assert isinstance(results[2], UnusableLogits)


ANY_PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0.0, 100.0) | st.sampled_from([5e-324, 1e-50, 1e-40, 1e-38]),
        "top_p": st.floats(0.0, 1.0, exclude_min=True),
        "top_k": st.integers(-1, 12) | st.just(2**31),
        "min_p": st.floats(0.0, 1.0),
        "presence_penalty": st.floats(-2.0, 2.0),
        "frequency_penalty": st.floats(-2.0, 2.0),
        "repetition_penalty": st.floats(0.0, 100.0, exclude_min=True) | st.sampled_from([5e-324, 1e-50, 1e-40]),
        "logit_bias": st.lists(st.tuples(st.integers(0, 5), st.floats(-100.0, 100.0)), max_size=5),
        "seed": st.none() | st.integers(-(2**63), 2**64 - 1),
        "logprobs": st.none() | st.integers(0, 20),
        "min_tokens": st.integers(0, 4),
        "stop_token_ids": st.lists(st.integers(0, 5), max_size=6),
        "ignore_eos": st.booleans(),
    },
)
ANY_ROW = st.tuples(
    ANY_PARAMS,
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), max_size=4),
    st.lists(st.floats(width=32) | st.floats(-20.0, 20.0, width=32), min_size=6, max_size=6),
)


@settings(max_examples=300, deadline=None)
@given(drawn=st.lists(ANY_ROW, min_size=1, max_size=4))
def test_sampling_is_total_and_each_row_its_own(drawn: list[tuple[Any, ...]]) -> None:
    """No legal parameters and no logits raise, and every row gets what it would get alone."""
    rows = [row(prompt, output, eos=(0,), **params) for params, prompt, output, _ in drawn]
    logits = torch.tensor([values for *_, values in drawn], dtype=torch.float32)
    before = logits.clone()
    results = sample(StepLogits.of(logits, len(logits)), rows)
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))
    assert len(results) == len(rows)
    for index, result in enumerate(results):
        [alone] = sample(StepLogits.of(logits[index : index + 1], 1), rows[index : index + 1])
        if isinstance(result, UnusableLogits):
            assert str(alone) == str(result)
            assert not logits[index].isfinite().all() or "forbidden" in str(result)
        else:
            assert result == alone
            assert 0 <= result.token_id < 6


class CopiesOf(TorchDispatchMode):
    """Counts the numbers of tensors that are made from others."""

    def __init__(self) -> None:
        super().__init__()
        self.num_copied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        copies = func._schema.name in ("aten::clone", "aten::stack", "aten::cat", "aten::index")
        if copies and result.numel() >= len(LOGITS):  # ids and factors are small
            self.num_copied += result.numel()
        return result


def test_only_rows_that_are_adjusted_are_copied_and_once() -> None:
    logits = torch.tensor([LOGITS] * 4)
    plain = [row(temperature=0.0)] * 4
    adjusted = [
        *plain[:2],
        row(logit_bias={3: 100.0}, temperature=0.0),
        row([6], repetition_penalty=9.0, temperature=0.0),
    ]
    found = StepLogits.of(logits, len(logits))
    for rows, num_rows, tokens in ((plain, 0, [6, 6, 6, 6]), (adjusted, 2, [6, 6, 3, 0])):
        with CopiesOf() as counter:
            results = sample(found, rows)
        assert [token.token_id for token in results] == tokens
        assert counter.num_copied == num_rows * len(LOGITS)
    assert torch.equal(logits, torch.tensor([LOGITS] * 4))
