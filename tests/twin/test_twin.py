"""A recorded run, run again, decides the same, byte for byte: from its inputs, and in the simulator."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import asdict, replace

import msgspec
import pytest

from fakes import Cost, PaperExecutor, PaperText
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
CONTINUOUS = ("continuous", "reuse")


class JitteryClock:
    """A clock that has moved a little whenever it is read, as real ones have."""

    def __init__(self, rng):
        self.rng, self.time_s = rng, 100.0

    def now_s(self):
        self.time_s += self.rng.randint(1, 10) / 1024  # exact in floating point, whatever is added to it
        return self.time_s


def new_engine(world, path, clock, failures):
    """An engine core on paper that writes a step log, and what closes the log."""
    memory = (world.num_blocks, world.block_size, world.num_host_blocks)
    scheduler = make_scheduler(world.config, *memory, hash_key=b"what is recorded does not depend on it")
    executor = PaperExecutor(
        world.num_blocks,
        world.block_size,
        failure=lambda output: failures.get(output.step),
        num_host_blocks=world.num_host_blocks,
        cost=lambda output: _some_time(world.costs[output.step % len(world.costs)]),
    )
    log = StepLog(path)
    log.write(Started(world.config.name, asdict(world.config), *memory))
    return EngineCore(scheduler, {"main": executor}, PaperText, clock, [Recorder(log.write)]), log


def _some_time(cost):
    """No step takes none, so that it is before the next one."""
    return Cost(cost.token_s + 1 / 1024, cost.copy_s)


def record(family, seed, path, with_aborts_and_failures=True):
    """Play the callers of a random world on a real engine core and write its step log."""
    rng = random.Random(seed)
    world = random_world(rng, family)
    if not with_aborts_and_failures:  # classes alone: a simulation moves arrivals to when they are seen
        world.config = replace(world.config, priority_ageing_s=86_400.0)
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
    return make_scheduler(config, started.num_blocks, started.block_size, started.num_host_blocks)


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
    """What the simulator decides when it is given the log's arrivals, durations and tokens.

    Its time is that of the steps alone: whoever came before a step began comes when the step before it ends.
    """
    begins_s, durations_s, copies_s, tokens, end_s = [], {}, {}, {}, 0.0
    for line in log:
        match line:
            case Scheduled(begin_s, output):
                begins_s.append((begin_s, end_s))
                ends = {row.seq_id: row.start + len(row.token_ids) for row in output.scheduled}
            case Updated(_, step, result):
                tokens |= {(row.seq_id, ends[row.seq_id]): row.tokens[0] for row in result.sampled}
                durations_s[step], copies_s[step] = result.duration_s, result.copies_s
                end_s += result.duration_s
    requests = []
    for line in log:
        if isinstance(line, Added):
            seen_s = next((twin_s for begin_s, twin_s in begins_s if begin_s >= line.now_s), end_s)
            requests.append(replace(line.request, arrival_s=seen_s))
    return simulated(started, requests, durations_s, tokens, copies_s).outputs


def simulated(started, requests, durations_s, tokens, copies_s):
    """What the simulator decides, for steps that take so long and give such tokens."""
    clock, watcher = VirtualClock(), OutputsOf()
    executor = SimExecutor(
        KVCapacity(started.num_blocks, started.block_size, 0, started.num_host_blocks),
        lambda output: durations_s[output.step],
        lambda *where: tokens[where],
        lambda output: copies_s[output.step],
    )
    core = EngineCore(rebuild(started), {"main": executor}, PaperText, clock, [watcher])
    simulate(core, ("main",), clock, requests)
    return watcher


@pytest.mark.parametrize("family", CONTINUOUS)
@pytest.mark.parametrize("seed", range(60))
def test_the_simulator_decides_as_the_real_run_did(family, seed, tmp_path):
    record(family, seed, tmp_path / "steps.jsonl", with_aborts_and_failures=False)
    started, *log = read_step_log(tmp_path / "steps.jsonl")
    recorded = [line.output for line in log if isinstance(line, Scheduled)]
    assert same_bytes(simulated_twin(started, log), recorded)


def same_bytes(outputs, others):
    return [msgspec.json.encode(one) for one in outputs] == [msgspec.json.encode(other) for other in others]


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
    twin = simulated(started, requests, durations_s, tokens, copies_s=dict.fromkeys(durations_s, 0.0))
    assert same_bytes(twin.outputs, [line.output for line in scheduled.values()])
    assert twin.times_s == [line.now_s for line in scheduled.values()]


def test_a_step_cost_is_found_again(tmp_path):
    """Steps that take exactly what a cost says give that cost back."""
    true_cost = LinearStepCost(2e-3, 1e-4, 3e-7, 5e-4)
    num_copies, seeds = 0, iter(range(300))
    while num_copies < 3:  # worlds in which blocks are copied are not rare
        path = tmp_path / f"steps {(seed := next(seeds))}.jsonl"
        record("reuse", seed, path, with_aborts_and_failures=False)
        _, *log = read_step_log(path)
        outputs = {line.output.step: line.output for line in log if isinstance(line, Scheduled)}
        num_copies = sum(len(output.copies) for output in outputs.values())

    def timed(line):
        output = outputs[line.step]
        times_s = {"duration_s": true_cost.duration_s(output), "copies_s": true_cost.copies_s(output)}
        return msgspec.structs.replace(line, result=replace(line.result, **times_s))

    fitted = fit_step_cost([timed(line) if isinstance(line, Updated) else line for line in log])
    assert fitted.per_copied_block_s == pytest.approx(true_cost.per_copied_block_s, rel=1e-9)
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
