"""A recorded run, run again, decides the same, byte for byte: from its inputs, and in the simulator."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import asdict, replace

import msgspec
import pytest

from fakes import PaperExecutor, PaperText
from inflight.core.errors import Rejected
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.engine.executor import KVCapacity
from inflight.engine.recorder import Added, Flushed, Recorder, Scheduled, Started, StepLog, Updated, read_step_log
from inflight.schedulers.registry import config_from_log, make_scheduler
from inflight.sim.cost import LinearStepCost, fit_step_cost, num_context_tokens
from inflight.sim.executor import SimExecutor
from inflight.sim.loop import simulate
from inflight.sim.replay import replay
from laws.worlds import FAMILIES, TICKS_PER_S, random_world

REQUEST_LEVEL = ("static", "dynamic")


class JitteryClock:
    """A clock that has moved a little whenever it is read, as real ones have."""

    def __init__(self, rng):
        self.rng, self.time_s = rng, 100.0

    def now_s(self):
        self.time_s += self.rng.randint(1, 10) / 1024  # exact in floating point, whatever is added to it
        return self.time_s


def new_engine(world, path, clock, failures):
    """An engine core on paper that writes a step log, and what closes the log."""
    scheduler = make_scheduler(world.config, world.num_blocks, world.block_size)
    executor = PaperExecutor(world.num_blocks, world.block_size, failure=lambda output: failures.get(output.step))
    log = StepLog(path)
    log.write(Started(world.config.name, asdict(world.config), world.num_blocks, world.block_size))
    return EngineCore(scheduler, {"main": executor}, PaperText, clock, [Recorder(log.write)]), log


def record(family, seed, path, with_aborts_and_failures=True):
    """Play the callers of a random world on a real engine core and write its step log."""
    rng = random.Random(seed)
    world = random_world(rng, family)
    clock = JitteryClock(rng)
    core, log = new_engine(world, path, clock, world.failures if with_aborts_and_failures else {})
    turn = 0
    while turn <= world.last_event or core.has_work:
        for request in world.arrivals.get(turn, ()):
            try:
                core.add(replace(request, arrival_s=clock.now_s()))
            except Rejected:
                continue
        for abort in world.aborts.get(turn, ()) if with_aborts_and_failures else ():
            core.abort(abort.request_id)
        if turn in world.flushes or turn == world.last_event:
            core.flush()
        core.step()
        turn += 1
    log.close()


def rebuild(started):
    config = config_from_log(started.scheduler, started.config)
    return make_scheduler(config, started.num_blocks, started.block_size)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(150))
def test_replayed_inputs_give_the_same_outputs(family, seed, tmp_path):
    record(family, seed, tmp_path / "steps.jsonl")
    started, *log = read_step_log(tmp_path / "steps.jsonl")
    assert sum(isinstance(line, Flushed) for line in log) >= 1
    decisions = list(replay(log, rebuild(started)))
    assert len(decisions) == sum(isinstance(line, Scheduled) for line in log)
    for decision in decisions:
        assert msgspec.json.encode(decision.replayed) == msgspec.json.encode(decision.recorded)


class OutputsOf:
    """An observer that keeps what was decided, and when."""

    def __init__(self):
        self.outputs, self.times_s = [], []

    def on_schedule(self, output, now_s):
        self.outputs.append(output)
        self.times_s.append(now_s)

    def on_add(self, *_):
        pass

    on_abort = on_flush = on_update = on_add


def simulated_twin(started, log):
    """What the simulator decides when it is given the log's arrivals, durations and tokens."""
    begins_s = [line.now_s for line in log if isinstance(line, Scheduled)]
    requests, durations_s, tokens, num_live = [], {}, {}, 0
    for line in log:
        match line:
            case Added(now_s, request):
                # It could first be served by the next step that began after it had come.
                seen_s = next((begin_s for begin_s in begins_s if begin_s >= now_s), now_s)
                requests.append(replace(request, arrival_s=seen_s))
                num_live += request.sampling.n if line.rejected is None else 0
            case Scheduled(begin_s, output):
                ends = {row.seq_id: row.start + len(row.token_ids) for row in output.scheduled}
            case Updated(end_s, step, result):
                tokens |= {(row.seq_id, ends[row.seq_id]): row.tokens[0] for row in result.sampled}
                num_live -= sum(event.finish_reason is not None for event in line.events)
                # A step lasts until the next one begins; until it ended, where nothing was left to do.
                next_s = next((other_s for other_s in begins_s if other_s > begin_s), end_s)
                durations_s[step] = (next_s if num_live else end_s) - begin_s
    return simulated(started, requests, durations_s, tokens).outputs


def simulated(started, requests, durations_s, tokens):
    """What the simulator decides, for steps that take so long and give such tokens."""
    clock, watcher = VirtualClock(), OutputsOf()
    executor = SimExecutor(
        KVCapacity(started.num_blocks, started.block_size, 0),
        lambda output: durations_s[output.step],
        lambda *where: tokens[where],
    )
    core = EngineCore(rebuild(started), {"main": executor}, PaperText, clock, [watcher])
    simulate(core, ("main",), clock, requests)
    return watcher


@pytest.mark.parametrize("seed", range(60))
def test_the_simulator_decides_as_the_real_run_did(seed, tmp_path):
    record("continuous", seed, tmp_path / "steps.jsonl", with_aborts_and_failures=False)
    started, *log = read_step_log(tmp_path / "steps.jsonl")
    if started.config["scheduling_policy"] == "priority":
        started.config["priority_ageing_s"] = 86_400.0  # classes alone: arrivals are moved to when they are seen
    outputs = simulated_twin(started, log)
    recorded = [decision.replayed for decision in replay(log, rebuild(started))]
    assert [msgspec.json.encode(output) for output in outputs] == [msgspec.json.encode(output) for output in recorded]


def record_in_virtual_time(world, path):
    """Serve the callers of a world as the engine's loop does: heard between steps, asleep while a window is open."""
    clock = VirtualClock()
    core, log = new_engine(world, path, clock, failures={})
    arrivals = deque(
        replace(request, arrival_s=tick / TICKS_PER_S)
        for tick, requests in sorted(world.arrivals.items())
        for request in requests
    )
    while arrivals or core.has_work:
        while arrivals and arrivals[0].arrival_s <= clock.now_s():
            try:
                core.add(arrivals.popleft())
            except Rejected:
                continue
        output = core.begin("main")
        if hasattr(output, "scheduled"):
            result = core.execute(output)
            clock.advance_to(clock.now_s() + world.durations[output.step % len(world.durations)] / TICKS_PER_S)
            core.finish(output, result)
        else:
            next_arrival_s = arrivals[0].arrival_s if arrivals else math.inf
            due_s = min(next_arrival_s, clock.now_s() + core.idle_s())
            if due_s < math.inf:
                clock.advance_to(due_s)
            elif core.has_work:
                core.flush()
    log.close()


@pytest.mark.parametrize("family", REQUEST_LEVEL)
@pytest.mark.parametrize("seed", range(100))
def test_the_simulator_lets_the_same_batches_leave_at_the_same_times(family, seed, tmp_path):
    world = random_world(random.Random(seed), family)
    world.config = replace(world.config, priority_ageing_s=86_400.0)  # classes alone: real adds come between steps
    record_in_virtual_time(world, tmp_path / "steps.jsonl")
    started, *log = read_step_log(tmp_path / "steps.jsonl")
    scheduled = {line.output.step: line for line in log if isinstance(line, Scheduled)}
    durations_s, tokens = {}, {}
    for line in log:
        if isinstance(line, Updated):
            decided = scheduled[line.step]
            ends = {row.seq_id: row.start + len(row.token_ids) for row in decided.output.scheduled}
            tokens |= {(row.seq_id, ends[row.seq_id]): row.tokens[0] for row in line.result.sampled}
            durations_s[line.step] = line.now_s - decided.now_s
    requests = [line.request for line in log if isinstance(line, Added)]
    twin = simulated(started, requests, durations_s, tokens)
    recorded = [line.output for line in scheduled.values()]
    assert [msgspec.json.encode(one) for one in twin.outputs] == [msgspec.json.encode(one) for one in recorded]
    assert twin.times_s == [line.now_s for line in scheduled.values()]


def test_a_step_cost_is_found_again(tmp_path):
    """Steps that take exactly what a cost says give that cost back."""
    true_cost = LinearStepCost(2e-3, 1e-4, 3e-7)
    record("continuous", 3, tmp_path / "steps.jsonl", with_aborts_and_failures=False)
    _, *log = read_step_log(tmp_path / "steps.jsonl")
    outputs = {line.output.step: line.output for line in log if isinstance(line, Scheduled)}
    timed = [
        msgspec.structs.replace(line, result=replace(line.result, duration_s=true_cost.duration_s(outputs[line.step])))
        if isinstance(line, Updated)
        else line
        for line in log
    ]
    fitted = fit_step_cost(timed)
    assert fitted.constant_s == pytest.approx(true_cost.constant_s, rel=1e-6)
    assert fitted.per_token_s == pytest.approx(true_cost.per_token_s, rel=1e-6)
    assert fitted.per_context_token_s == pytest.approx(true_cost.per_context_token_s, rel=1e-4)
    with pytest.raises(ValueError, match="at least 3 steps"):
        fit_step_cost(log[:2])


def test_context_tokens_by_hand(tmp_path):
    """A chunk of 3 tokens after 2 stored ones attends to 3 + 4 + 5 tokens."""
    record("continuous", 0, tmp_path / "steps.jsonl")
    output = next(line.output for line in read_step_log(tmp_path / "steps.jsonl") if isinstance(line, Scheduled))
    row = output.scheduled[0]._replace(start=2, token_ids=(0, 1, 0))
    assert num_context_tokens(type(output)(output.lane, output.step, (row,))) == 12


def test_a_log_cut_short_is_read_and_a_broken_one_is_named(tmp_path):
    record("continuous", 1, tmp_path / "steps.jsonl")
    whole = (tmp_path / "steps.jsonl").read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole[:-5])
    assert len(list(read_step_log(cut))) == len(whole.splitlines()) - 1
    cut.write_bytes(whole.splitlines(keepends=True)[0] + b'{"event": "nonsense"}\n')
    with pytest.raises(ValueError, match="line 2"):
        list(read_step_log(cut))


def test_a_log_goes_on_where_the_last_engine_left_it(tmp_path):
    """An engine that was killed leaves half a line; the next one cuts it off and begins with a start line."""
    path = tmp_path / "steps.jsonl"
    record("continuous", 1, path)
    first = path.read_bytes()
    path.write_bytes(first[:-5])
    record("continuous", 2, path)
    kept = first[: first[:-5].rindex(b"\n") + 1]
    assert path.read_bytes().startswith(kept + b'{"event":"start"')
    started, *log = read_step_log(path)
    with pytest.raises(ValueError, match="another engine starts"):
        list(replay(log, rebuild(started)))


def test_a_log_without_its_beginning_is_refused(tmp_path):
    record("continuous", 1, tmp_path / "steps.jsonl")
    started, *log = read_step_log(tmp_path / "steps.jsonl")
    headless = log[next(i for i, line in enumerate(log) if isinstance(line, Updated)) :]
    with pytest.raises(ValueError, match="step 0 ends"):
        list(replay(headless, rebuild(started)))
