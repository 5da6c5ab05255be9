"""``LLM``: vLLM's offline API over the engine that also serves."""

import itertools
import math
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight import LLM, SamplingParams
from inflight.config import EngineConfig
from inflight.core.errors import InvariantViolation, Reason, Rejected, StepFailed
from inflight.core.output import SchedulerOutput, SchedulerStats, StepResult
from inflight.engine.recorder import Scheduled, read_step_log

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = [f"prompt number {i} " + "and so on " * (i % 5) for i in range(12)]


def tokens(outputs: Any) -> list[list[int]]:
    return [choice.token_ids for output in outputs for choice in output.outputs]


def stats_of(llm: LLM) -> SchedulerStats:
    assert llm._engine is not None
    return llm._engine.core.stats()


def test_a_script_written_for_vllm_runs(tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    llm = LLM(model=tiny_model, dtype="bfloat16", max_num_seqs=8, gpu_memory_utilization=0.5, max_num_batched_tokens=64)
    prompts = [f"Question {i}: why" for i in range(60)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.7, max_tokens=12))
    assert [output.prompt for output in outputs] == prompts
    for output in outputs:
        assert output.finished
        assert output.prompt_token_ids == llm.get_tokenizer().encode(output.prompt or "")
        assert isinstance(output.outputs[0].text, str)
        assert 1 <= len(output.outputs[0].token_ids) <= 12
        assert output.outputs[0].finish_reason in ("length", "stop")
    assert "60/60" in (shown := capsys.readouterr().err)
    assert "tokens/s" in shown
    llm.close()


def test_each_row_is_what_it_is_alone(llm: LLM) -> None:
    together = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    alone = [llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in PROMPTS]
    assert tokens(together) == tokens(alone)
    assert [output.outputs[0].text for output in together] == [output.outputs[0].text for output in alone]


def test_prompts_may_be_text_or_token_ids(llm: LLM) -> None:
    text = "the same prompt"
    ids = llm.get_tokenizer().encode(text)
    forms: list[Any] = [
        text,
        ids,
        {"prompt": text},
        {"prompt_token_ids": ids},
        {"prompt": text, "prompt_token_ids": ids},
    ]
    outputs = llm.generate(forms, GREEDY, use_tqdm=False)
    assert len({tuple(choice) for choice in tokens(outputs)}) == 1
    assert [output.prompt for output in outputs] == [text, None, text, None, text]
    assert all(tokens(llm.generate(form, GREEDY, use_tqdm=False)) == tokens(outputs[:1]) for form in forms)


def test_a_prompt_that_comes_again_is_found_unless_its_salt_is_another(tiny_model: str) -> None:
    text, options = (
        "the same long beginning of a prompt, and its end",
        {"num_threads": 1, "num_gpu_blocks_override": 32},
    )
    with LLM(tiny_model, dtype="float32", block_size=16, **options) as llm:
        num_tokens = len(llm.get_tokenizer().encode(text))
        prompts = [text, text, {"prompt": text, "cache_salt": "mine"}, {"prompt": text, "cache_salt": "mine"}, text]
        outputs = [llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in prompts]
        num_found = (num_tokens - 1) // 16 * 16
        assert [output.num_cached_tokens for output in outputs] == [0, num_found, 0, num_found, num_found]
        assert len({tuple(choice) for choice in tokens(outputs)}) == 1
        (several,) = llm.generate(
            {"prompt": text, "cache_salt": "new"}, SamplingParams(n=3, max_tokens=2), use_tqdm=False
        )
        assert several.num_cached_tokens == 0  # the first choice's: the others found what it had computed


@pytest.mark.parametrize("salt", [5, ["a"], "\ud800"], ids=repr)
def test_salts_that_are_none(llm: LLM, salt: Any) -> None:
    with pytest.raises(Rejected, match="prompt 0: cache_salt must be text"):
        llm.generate({"prompt": "a", "cache_salt": salt}, GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    "prompts", [3, ["fine", 3], [{"text": "no such key"}], [["a", "b"]], {"prompt": "a", "cachesalt": "b"}], ids=str
)
def test_what_is_no_prompt_is_a_type_error(llm: LLM, prompts: Any) -> None:
    with pytest.raises(TypeError):
        llm.generate(prompts, GREEDY, use_tqdm=False)


def test_no_prompts_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY, use_tqdm=False) == []
    assert llm.chat([], GREEDY, use_tqdm=False) == []


def test_each_prompt_may_have_its_own_sampling_params(llm: LLM) -> None:
    lengths = [3, 1, 5]
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]
    outputs = llm.generate(PROMPTS[:3], params, use_tqdm=False)
    assert [len(choice) for choice in tokens(outputs)] == lengths
    with pytest.raises(ValueError, match=r"3 prompts.* 2 "):
        llm.generate(PROMPTS[:3], params[:2], use_tqdm=False)


def test_several_choices_in_their_order(llm: LLM) -> None:
    (output,) = llm.generate(["many"], SamplingParams(n=5, seed=3, max_tokens=6, ignore_eos=True), use_tqdm=False)
    assert [choice.index for choice in output.outputs] == [0, 1, 2, 3, 4]
    assert len({tuple(choice.token_ids) for choice in output.outputs}) > 1


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3, ignore_eos=True)
    choice = llm.generate(["one"], params, use_tqdm=False)[0].outputs[0]
    assert choice.logprobs is not None
    assert choice.cumulative_logprob is not None
    assert len(choice.logprobs) == len(choice.token_ids) == 4
    taken = []
    for token_id, position in zip(choice.token_ids, choice.logprobs, strict=True):
        assert len(position) == 3
        assert position[token_id].rank == 1
        assert [one.rank for one in sorted(position.values(), key=lambda one: -one.logprob)] == [1, 2, 3]
        assert position[token_id].decoded_token == llm.get_tokenizer().decode([token_id])
        taken.append(position[token_id].logprob)
    assert math.isclose(choice.cumulative_logprob, sum(taken))
    plain = llm.generate(["one"], GREEDY, use_tqdm=False)[0].outputs[0]
    assert (plain.logprobs, plain.cumulative_logprob) == (None, None)


def test_a_stop_string_is_cut_off_and_named(llm: LLM) -> None:
    full = llm.generate(["stop"], GREEDY, use_tqdm=False)[0].outputs[0]
    stop = full.text[2:4]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop=(stop,))
    choice = llm.generate(["stop"], params, use_tqdm=False)[0].outputs[0]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert choice.text == full.text[: full.text.index(stop)]


def test_chat_renders_the_template(llm: LLM) -> None:
    conversations = [[{"role": "user", "content": f"hello {i}"}] for i in range(3)]
    outputs = llm.chat(conversations, GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == [f"<|user|>hello {i}\n<|assistant|>" for i in range(3)]
    assert tokens(llm.chat(conversations[1], GREEDY, use_tqdm=False)) == tokens(outputs[1:2])
    raw = llm.generate([output.prompt for output in outputs], GREEDY, use_tqdm=False)
    assert tokens(raw) == tokens(outputs)


def test_without_a_seed_the_engines_seed_decides(tiny_model: str) -> None:
    def run(seed: int) -> list[list[list[int]]]:
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        with LLM(tiny_model, seed=seed, num_threads=1, max_num_batched_tokens=64, num_gpu_blocks_override=32) as llm:
            return [tokens(llm.generate(["a", "a", "b"], params, use_tqdm=False)) for _ in range(2)]

    first = run(1)
    assert run(1) == first
    assert run(2) != first
    assert first[0] != first[1]  # the second call goes on and does not repeat the first
    assert first[0][0] != first[0][1]  # nor do equal prompts repeat each other


def test_a_prompt_that_can_never_run_is_named_and_nothing_has_run(llm: LLM) -> None:
    before = stats_of(llm)
    with pytest.raises(Rejected, match="prompt 2: ") as refused:
        llm.generate(["fine", "fine", "x" * 1000, "fine"], GREEDY, use_tqdm=False)
    assert refused.value.reason is Reason.CONTEXT_LENGTH
    after = stats_of(llm)
    assert after.live == 0
    assert after.finished == before.finished
    with pytest.raises(Rejected, match=r"prompt 0: .*empty"):
        llm.generate([""], GREEDY, use_tqdm=False)
    with pytest.raises(Rejected, match=r"prompt 1: .*token id 99999"):
        llm.generate([[1, 2], [99999]], GREEDY, use_tqdm=False)
    assert len(llm.generate(["and it goes on"], GREEDY, use_tqdm=False)) == 1


def test_more_prompts_than_a_server_would_let_wait(tiny_model: str) -> None:
    prompts = [[i % 200] for i in range(1500)]
    options = {"num_threads": 1, "max_num_seqs": 256, "max_num_batched_tokens": 256, "num_gpu_blocks_override": 256}
    assert EngineConfig().scheduler.max_num_waiting_seqs < len(prompts) - 256
    with LLM(tiny_model, **options) as llm:
        assert len(llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)) == 1500


@pytest.mark.parametrize("num_choices", [1, 3])
def test_an_interrupt_gives_up_what_runs_and_the_llm_goes_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, num_choices: int
) -> None:
    core = llm._engine.core
    assert core is not None
    expected = tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    execute, counter = core.execute, itertools.count()

    def interrupted(output: SchedulerOutput) -> StepResult | StepFailed:
        if next(counter) == 3:
            os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does, in the middle of a step
        return execute(output)

    monkeypatch.setattr(core, "execute", interrupted)
    params = SamplingParams(n=num_choices, temperature=0, max_tokens=50, ignore_eos=True)
    # A shell that starts the tests in the background has them ignore the signal.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, params, use_tqdm=False)
    finally:
        signal.signal(signal.SIGINT, inherited)
    stats = core.stats()
    assert (stats.live, stats.num_running_seqs, stats.num_waiting_seqs) == (0, 0, 0)
    assert stats.num_free_blocks == stats.num_blocks
    assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected


def test_a_stream_gives_the_text_as_it_comes(llm: LLM) -> None:
    expected = llm.generate("stream", GREEDY, use_tqdm=False)[0].outputs[0]
    deltas = list(llm.stream("stream", GREEDY))
    assert len(deltas) > 1
    assert "".join(delta.text for delta in deltas) == expected.text
    assert deltas[-1].finish_reason == expected.finish_reason


def test_a_stream_that_is_closed_early_leaves_nothing_behind(llm: LLM) -> None:
    stream = llm.stream("stream", SamplingParams(n=3, max_tokens=50, ignore_eos=True))
    next(stream)
    with pytest.raises(RuntimeError, match="in use"):
        llm.generate("meanwhile", GREEDY, use_tqdm=False)
    stream.close()
    stats = stats_of(llm)
    assert (stats.live, stats.num_free_blocks) == (0, stats.num_blocks)
    assert len(llm.generate("afterwards", GREEDY, use_tqdm=False)) == 1


def test_choices_that_have_ended_do_not_hide_the_others_from_an_abort(llm: LLM) -> None:
    params = SamplingParams(n=8, seed=1, max_tokens=100, stop_token_ids=tuple(range(0, 256, 4)))
    for num_ended in range(1, 8):
        stream = llm.stream("stream", params)
        ended = (delta for delta in stream if delta.finish_reason is not None)
        for _ in range(num_ended):
            next(ended)
        stream.close()
        assert llm._engine is not None
        assert not llm._engine.core.has_work


def test_unknown_keywords_and_wrong_values_are_named(tiny_model: str) -> None:
    with pytest.raises(TypeError, match="max_num_seks"):
        LLM(tiny_model, max_num_seks=3)
    with pytest.raises(ValueError, match="max_num_seqs"):
        LLM(tiny_model, max_num_seqs=0)
    with pytest.raises(ValueError, match="float8"):
        LLM(tiny_model, dtype="float8")


def test_a_closed_llm_says_so(tiny_model: str) -> None:
    llm = LLM(tiny_model, max_num_batched_tokens=64, num_gpu_blocks_override=32)
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("too late", GREEDY, use_tqdm=False)


def test_the_longest_sequence_is_what_model_cache_and_caller_allow(tiny_model: str) -> None:
    def length(**options: Any) -> int:
        with LLM(tiny_model, num_threads=1, max_num_batched_tokens=64, **options) as llm:
            assert any("max_model_len" in note for note in llm.info.notes)
            return llm.info.max_model_len

    assert length() == 256
    assert length(max_model_len=100) == 100
    assert length(max_model_len=999) == 256
    assert length(num_gpu_blocks_override=3, block_size=16) == 48


def test_a_broken_invariant_closes_the_llm_and_names_the_last_steps(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    llm = LLM(tiny_model, num_threads=1, max_num_batched_tokens=64)

    def broken(*_: object) -> None:
        raise InvariantViolation("a law was broken on purpose")

    monkeypatch.setattr(llm._engine.core._scheduler, "update", broken)
    with pytest.raises(InvariantViolation, match="on purpose; the last steps are in") as caught:
        llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
    *_, last = read_step_log(Path(str(caught.value).rpartition(" ")[2]))
    assert isinstance(last, Scheduled)
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)


def test_the_measured_step_leaves_room_for_prompts_beside_every_seat(tiny_model: str) -> None:
    with LLM(tiny_model, num_threads=1, max_num_seqs=3000, num_gpu_blocks_override=64) as llm:
        assert llm.info.max_num_batched_tokens == 3000 + llm.info.block_size  # 2048 is the most that is measured


def test_an_llm_that_is_closed_while_it_streams_says_so(tiny_model: str) -> None:
    llm = LLM(tiny_model, num_threads=1, max_num_batched_tokens=64)
    stream = llm.stream([1, 2, 3], SamplingParams(max_tokens=50, ignore_eos=True))
    next(stream)
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(stream)


def test_wrong_sampling_params_are_named_and_a_step_log_may_be_text(tiny_model: str, tmp_path: Path) -> None:
    with LLM(tiny_model, num_threads=1, max_num_batched_tokens=64, step_log=str(tmp_path / "log")) as llm:
        for wrong in ({"max_tokens": 3}, {}, "greedy", 3):
            with pytest.raises(TypeError, match="SamplingParams"):
                llm.generate([1, 2], wrong, use_tqdm=False)  # type: ignore[arg-type]
        llm.generate({"prompt_token_ids": np.array([1, 2])}, GREEDY, use_tqdm=False)
    started, *_ = read_step_log(tmp_path / "log")
    assert started.num_blocks == llm.info.num_blocks
