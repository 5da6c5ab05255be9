"""The loop without a process: its messages come from a list."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.process_fakes import MAX_MODEL_LEN, VIOLATE, VOCAB_SIZE, build, request
from fakes import unbatched
from inflight.core.errors import InvariantViolation, Reason
from inflight.core.output import FinishReason
from inflight.engine.loop import Engine, run_loop
from inflight.engine.recorder import read_step_log
from inflight.engine.wire import Abort, Heartbeat, Refused, Step, Stop, decode_to_engine, encode_add

HEARTBEAT_S = 7.0


def add(*args, **kwargs):
    return decode_to_engine(encode_add(request(*args, **kwargs)))


def run(turns, engine: Engine | None = None):
    """Run the loop over what each turn finds in its inbox, then until idle; what it sent and the timeouts it used."""
    engine = engine or build(step_s=0.0)
    sent, timeouts_s = [], []
    inbox = iter(turns)

    def receive(timeout_s: float):
        timeouts_s.append(timeout_s)
        if (messages := next(inbox, None)) is not None:
            return messages
        return [] if engine.core.has_work else [Stop()]

    run_loop(engine, receive, sent.append, HEARTBEAT_S)
    return sent, timeouts_s


def test_an_idle_loop_waits_and_shows_that_it_lives() -> None:
    sent, timeouts_s = run([[], [], []])
    assert sent == [Heartbeat()] * 3
    assert timeouts_s == [HEARTBEAT_S] * 4


def test_while_there_is_work_each_turn_is_one_step_that_does_not_wait() -> None:
    sent, timeouts_s = run([[add("a", max_tokens=5)]])
    assert all(isinstance(message, Step) for message in sent)
    assert [len(step.deltas) for step in sent] == [1] * 5
    assert timeouts_s == [HEARTBEAT_S, 0.0, 0.0, 0.0, 0.0, HEARTBEAT_S]
    tokens = [token.token_id for step in sent for delta in step.deltas for token in delta.tokens]
    assert tokens == unbatched(request("a", max_tokens=5), 0, MAX_MODEL_LEN, VOCAB_SIZE)
    assert sent[-1].deltas[0].finish_reason is FinishReason.LENGTH
    assert sum(step.metrics.num_output_tokens for step in sent) == 5
    assert (sent[-1].stats.finished, sent[-1].stats.live) == (1, 0)


def test_what_arrives_in_one_turn_shares_the_next_step() -> None:
    sent, _ = run([[add("a", max_tokens=1), add("b", max_tokens=1)]])
    (step,) = sent
    assert [delta.seq_id for delta in step.deltas] == [("a", 0), ("b", 0)]


def test_a_refused_request_is_answered_and_counted() -> None:
    sent, _ = run([[add("a", max_tokens=MAX_MODEL_LEN + 1)]])
    refused, step = sent
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.reason) == ("a", Reason.CONTEXT_LENGTH)
    assert (step.deltas, step.stats.rejected, step.metrics.rejected) == ((), 1, (Reason.CONTEXT_LENGTH,))


def test_every_abort_is_answered_even_of_unknown_requests() -> None:
    sent, _ = run([[Abort("never")], [add("a", max_tokens=100)], [Abort("a")]])
    assert [step.aborted for step in sent] == [("never",), (), ("a",)]
    assert sent[-1].stats.aborted == 1
    assert sent[-1].stats.num_free_blocks == sent[-1].stats.num_blocks


def test_nothing_comes_for_a_request_after_its_abort_was_answered() -> None:
    sent, _ = run([[add("a", max_tokens=100), add("b", max_tokens=10)], [], [Abort("a")]])
    answered = next(i for i, step in enumerate(sent) if "a" in step.aborted)
    ids = [[delta.seq_id[0] for delta in step.deltas] for step in sent]
    assert any("a" in some for some in ids[:answered])
    assert not any("a" in some for some in ids[answered:])
    assert sum(some.count("b") for some in ids) == 10


def test_stop_ends_the_loop_with_requests_in_flight() -> None:
    sent, _ = run([[add("a", max_tokens=100)], [Stop()]])
    assert len(sent) == 1


def test_a_broken_law_passes_through_and_leaves_the_last_steps() -> None:
    with pytest.raises(InvariantViolation, match="on purpose") as caught:
        run([[add("a", prompt=(VIOLATE, 1))]])
    path = Path(str(caught.value).rpartition(" ")[2])
    added, scheduled = read_step_log(path)
    assert added.request.request_id == scheduled.output.scheduled[0].seq_id[0] == "a"
    assert path.stat().st_mode & 0o077 == 0
    path.unlink()
