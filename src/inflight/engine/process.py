"""An engine in a process of its own: its asyncio client, which also watches and restarts it.

                     Ready                 lost, at most max_restarts times in restart_window_s
    STARTING ─────────────────► READY ◄──────────────► RESTARTING
        │ lost                    │ drain                   │ lost once too often
        ▼                         ▼                         ▼
      FAILED                  DRAINING ── lost ──────────► FAILED

Lost means: the process ended, said that it failed, or fell silent. Whatever was in flight then ends with an error,
because its tokens and its place in every batch went with the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace

from inflight.core.errors import InflightError, Reason, Rejected
from inflight.core.output import FinishReason, SchedulerStats
from inflight.core.request import Request, RequestId
from inflight.engine.events import ChoiceDelta, EngineInfo, Health, State
from inflight.engine.ipc_parent import EngineProcess, describe_exit, spawn
from inflight.engine.ipc_stream import DeltaStream, StreamTable
from inflight.engine.loop import EngineFactory
from inflight.engine.wire import Abort, Failed, Flush, Heartbeat, Ready, Refused, Step, Stop, encode, encode_add
from inflight.metrics.delta import MetricsDelta

HEARTBEAT_S = 1.0  # how often an idle engine shows that it is alive
GRACE_S = 5.0  # from being told to stop, or having failed, to being killed
LAST_WORDS_S = 1.0  # how long the reason may take that an engine sent before it exited
DUMP_S = 0.5  # what a hanging engine gets to write where it hangs
RETRY_AFTER_S = 5.0

logger = logging.getLogger(__name__)


class EngineStartFailed(InflightError):
    """The engine could not be built; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """The engine's process and its supervision. Raises ``ValueError`` for a value out of range."""

    start_timeout_s: float = field(
        default=600.0, metadata={"help": "seconds that loading the model and calibrating may take, above 0"}
    )
    hang_timeout_s: float = field(
        default=60.0,
        metadata={"help": "seconds that a step may take before the engine is taken to hang and is restarted, above 2"},
    )
    idle_hang_timeout_s: float = field(
        default=120.0, metadata={"help": "the same without requests in flight, in seconds, above 2"}
    )
    max_restarts: int = field(
        default=3, metadata={"help": "restarts of a lost engine within the restart window, at most; from 0"}
    )
    restart_window_s: float = field(default=600.0, metadata={"help": "the restart window in seconds, above 0"})
    max_buffered_deltas: int = field(
        default=2048,
        metadata={"help": "steps per choice that a slow reader may be behind before its request is ended; from 1"},
    )

    def __post_init__(self) -> None:
        # An engine that was idle may have been silent for a heartbeat when a request arrives.
        limits: dict[str, float] = {"start_timeout_s": 0, "restart_window_s": 0}
        limits |= {"hang_timeout_s": 2 * HEARTBEAT_S, "idle_hang_timeout_s": 2 * HEARTBEAT_S}
        for name, limit in limits.items():
            if not getattr(self, name) > limit:
                raise ValueError(f"{name} must be above {limit:g}, got {getattr(self, name)}")
        for name, least in {"max_restarts": 0, "max_buffered_deltas": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


class ProcessClient:
    """An ``EngineClient`` whose engine runs in a process of its own. Made by ``start``; belongs to one event loop.

    ``on_metrics`` is called once per step that the engine ran, and when the engine was lost with requests in flight.
    After a restart the engine's ``SchedulerStats`` count from zero.
    """

    info: EngineInfo

    def __init__(
        self,
        factory: EngineFactory,
        config: ProcessConfig,
        on_metrics: Callable[[MetricsDelta, SchedulerStats], None],
    ) -> None:
        self._factory = factory
        self._config = config
        self._on_metrics = on_metrics
        self._health = Health(State.STARTING, "the model is being loaded")
        self._num_restarts = 0
        self._draining = False
        self._engine: EngineProcess | None = None  # set while the engine is ready
        self._streams = StreamTable(config.max_buffered_deltas)
        self._num_readers = 0
        self._no_readers = asyncio.Event()
        self._no_readers.set()
        self._silent_s = 0.0  # since the last message of the engine
        self._restarts_s: deque[float] = deque()
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._supervisor = asyncio.create_task(self._supervise(), name="engine-supervisor")

    @classmethod
    async def start(
        cls,
        factory: EngineFactory,
        config: ProcessConfig,
        on_metrics: Callable[[MetricsDelta, SchedulerStats], None],
    ) -> ProcessClient:
        """Start an engine and wait until it is ready. Raises ``EngineStartFailed``."""
        client = cls(factory, config, on_metrics)
        try:
            await client._started
        except BaseException:
            await client.close()
            raise
        return client

    async def generate(self, request: Request) -> AsyncGenerator[ChoiceDelta, None]:
        """See ``EngineClient``. A reader that falls ``max_buffered_deltas`` behind is ended with ``ERROR``."""
        stream = self._begin(request)
        self._num_readers += 1
        self._no_readers.clear()
        try:
            while (delta := await stream.next()) is not None:
                yield delta
        finally:
            if not stream.ended:
                self._give_up(stream, FinishReason.ABORT)
            self._num_readers -= 1
            if not self._num_readers:
                self._no_readers.set()

    def abort(self, request_id: RequestId) -> None:
        """See ``EngineClient``."""
        if (stream := self._streams.get(request_id)) is not None:
            self._give_up(stream, FinishReason.ABORT)

    def health(self) -> Health:
        """See ``EngineClient``."""
        if self._draining and self._health.state is State.READY:
            return replace(self._health, state=State.DRAINING, reason="no new requests are taken")
        return self._health

    async def drain(self, timeout_s: float) -> None:
        """See ``EngineClient``. What has finished counts as running until its reader has taken it all."""
        self._draining = True
        if self._engine is not None:
            self._engine.send(encode(Flush()))
        try:
            await asyncio.wait_for(self._no_readers.wait(), timeout_s)
        except TimeoutError:
            logger.warning("%d requests still ran at the end of the drain timeout", self._num_readers)

    async def close(self) -> None:
        """See ``EngineClient``."""
        self._stop.set()
        await asyncio.wait([self._supervisor])

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, request: Request) -> DeltaStream:
        health, engine = self.health(), self._engine
        if health.state is not State.READY or engine is None:
            raise Rejected(
                Reason.UNAVAILABLE,
                f"the engine is not available ({health.state}): {health.reason}",
                retry_after_s=None if health.state is State.FAILED else RETRY_AFTER_S,
            )
        message = encode_add(request)
        stream = self._streams.open(request.request_id, request.sampling.n)
        engine.send(message)
        return stream

    def _give_up(self, stream: DeltaStream, finish_reason: FinishReason, error: str | None = None) -> None:
        self._streams.give_up(stream, finish_reason, error)
        if self._engine is not None:
            self._engine.send(encode(Abort(stream.request_id)))

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _receive(self, engine: EngineProcess) -> str:
        """Take in all that the engine sends, until it says that it failed: why."""
        while True:
            message = await engine.receive()
            self._silent_s = 0.0
            match message:
                case Step():
                    self._take_step(message)
                case Refused():
                    self._streams.refuse(message)
                case Ready(info):
                    self._take_ready(engine, info)
                case Failed(reason):
                    return f"the engine failed: {reason}"
                case Heartbeat():
                    pass
            # Messages that already wait are received without a pause; the readers must have their turn.
            await asyncio.sleep(0)

    def _take_ready(self, engine: EngineProcess, info: EngineInfo) -> None:
        self.info = info
        self._engine = engine
        self._set_health(State.READY, None)
        if not self._started.done():
            self._started.set_result(None)

    def _take_step(self, step: Step) -> None:
        for stream in self._streams.take(step):
            self._give_up(
                stream, FinishReason.ERROR, "the response was read too slowly and was ended to keep memory bounded"
            )
        self._report(step.metrics, step.stats)

    def _report(self, delta: MetricsDelta, stats: SchedulerStats) -> None:
        try:
            self._on_metrics(delta, stats)
        except Exception:
            logger.exception("metrics were not taken")

    # ── supervision ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _supervise(self) -> None:
        try:
            while self._health.state is not State.FAILED and not self._stop.is_set():
                try:
                    async with spawn(self._factory, HEARTBEAT_S) as engine:
                        grace_s = await self._attend(engine)
                        await engine.end(grace_s)
                except Exception as error:
                    logger.exception("the engine process cannot be run")
                    self._lose_engine(f"the engine process cannot be run: {type(error).__name__}: {error}")
        finally:
            self._shut()

    async def _attend(self, engine: EngineProcess) -> float:
        """Serve with an engine process until it is lost or we are closed; how long it then has to leave, in seconds."""
        self._silent_s = 0.0
        received = asyncio.create_task(self._receive(engine), name="engine-receive")
        exited = asyncio.create_task(engine.wait(), name="engine-wait")
        silent = asyncio.create_task(self._watch(), name="engine-watch")
        stopped = asyncio.create_task(self._stop.wait(), name="engine-stop")
        tasks = (received, exited, silent, stopped)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                was_ready = self._engine is not None
                self._shut()
                engine.send(encode(Stop()))
                return GRACE_S if was_ready else 0.0
            if exited.done() and exited.result() >= 0:
                await asyncio.wait([received], timeout=LAST_WORDS_S)
            if received.done():
                self._lose_engine(received.result())
                return GRACE_S
            if exited.done():
                self._lose_engine(describe_exit(exited.result()))
                return 0.0
            self._lose_engine(silent.result())
            engine.dump_stacks()
            return DUMP_S
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> str:
        """Return, in words, once the engine has been silent for too long."""
        config = self._config
        limits_s = (config.start_timeout_s, config.hang_timeout_s, config.idle_hang_timeout_s)
        tick_s = min(*limits_s, 8.0) / 8
        while True:
            # Counted in ticks and not by the clock: a pause of the whole machine is not the engine's silence.
            await asyncio.sleep(tick_s)
            self._silent_s += tick_s
            if self._engine is None:
                if self._silent_s > config.start_timeout_s:
                    return f"the engine was not ready after {config.start_timeout_s:g} s"
            elif self._silent_s > (config.hang_timeout_s if self._streams else config.idle_hang_timeout_s):
                return f"the engine hung: it was silent for {self._silent_s:.3g} s and was killed"

    def _lose_engine(self, reason: str) -> None:
        """Decide what follows, then tell every caller."""
        now_s = asyncio.get_running_loop().time()
        while self._restarts_s and self._restarts_s[0] < now_s - self._config.restart_window_s:
            self._restarts_s.popleft()
        if not self._started.done():
            self._started.set_exception(EngineStartFailed(reason))
            self._set_health(State.FAILED, reason)
        elif self._draining:
            self._set_health(State.FAILED, reason)
        elif len(self._restarts_s) >= self._config.max_restarts:
            self._set_health(
                State.FAILED, f"{reason}; after {self._config.max_restarts} restarts it is not started again"
            )
        else:
            self._restarts_s.append(now_s)
            self._num_restarts += 1
            self._set_health(State.RESTARTING, reason)
        logger.error("%s (now %s)", reason, self._health.state)
        self._engine = None
        lost = MetricsDelta(
            num_engines_lost=1, num_lost=len(self._streams), num_lost_aborted=self._streams.num_given_up
        )
        self._report(lost, SchedulerStats())
        self._streams.end_all(FinishReason.ERROR, reason)

    def _shut(self) -> None:
        if self._health.state is not State.FAILED:
            self._set_health(State.FAILED, "the engine was closed")
        self._engine = None
        self._streams.end_all(FinishReason.ABORT)

    def _set_health(self, state: State, reason: str | None) -> None:
        self._health = Health(state, reason, self._num_restarts)
