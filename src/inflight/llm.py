"""The offline face: ``LLM(...).generate(...)``, with the names and defaults of vLLM's offline API.

It drives the engine that also serves, in the caller's own thread: one ``EngineCore.step()`` after another.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import blake2b
from types import FrameType
from typing import Any, NamedTuple, Self

from tqdm import tqdm

from inflight.assemble import assemble
from inflight.config import EngineConfig, from_values
from inflight.core.errors import InvariantViolation, Rejected
from inflight.core.request import Request, SamplingParams, TokenId
from inflight.engine.events import ChoiceDelta, EngineInfo
from inflight.engine.loop import Engine
from inflight.hub.resolve import resolve
from inflight.outputs import ChoiceText, RequestOutput, request_output
from inflight.text.tokenizer import Tokenizer

PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
Prompt = str | Sequence[TokenId] | Mapping[str, Any]  # text, token ids, or a dict of one of them and a cache_salt
Messages = Sequence[Mapping[str, Any]]
Deltas = Generator[ChoiceDelta, None, None]


class _ReadPrompt(NamedTuple):
    text: str | None
    token_ids: list[TokenId]
    cache_salt: str = ""


class LLM:
    """A model in this process.

    ``model`` is a folder, a ``.gguf`` file or a hub name; None is the built-in model. The keywords are the fields of
    ``EngineConfig`` and its parts: ``dtype``, ``max_num_seqs``, ``gpu_memory_utilization``, ``max_model_len`` and so
    on. A request without a seed gets one that is derived from ``seed`` and the request's number, so
    that a script gives the same text each time it runs. One thread at a time may use an LLM.

    Raises ``TypeError`` for an unknown keyword, ``ValueError`` for a value out of range, ``ModelUnavailable``.
    """

    _engine: Engine | None = None

    def __init__(self, model: str | None = None, *, seed: int = 0, **options: Any) -> None:
        # Whoever calls has the whole list of prompts in memory anyway: by default its length is not limited here.
        config = from_values(EngineConfig, {"max_num_waiting_seqs": None, "model": model, **options})
        files = resolve(config.model)
        self._tokenizer = Tokenizer.load(files.path)
        engine = assemble(config, files, self._tokenizer)
        self._engine = engine
        self.info: EngineInfo = engine.info
        self._seed = seed
        self._numbers = itertools.count()
        self._busy = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete every prompt; the outputs are in the order of the prompts.

        Raises ``Rejected``, naming the prompt by its index, if one of them can never run; then none has run. A row
        that fails while it runs has the finish reason "error" and its message; the others go on. Ctrl-C gives up
        what runs, and the LLM can be used again.
        """
        return self._complete([self._read(prompt) for prompt in _as_list(prompts)], sampling_params, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, through the model's chat template; else as ``generate``."""
        conversations: list[Any] = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        texts = [self._tokenizer.render_chat(one, add_generation_prompt) for one in conversations]
        prompts = [_ReadPrompt(text, self._tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        return self._complete(prompts, sampling_params, use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Deltas:
        """Complete one prompt, step by step. Closing the iterator early gives the request up."""
        return self._run(self._requests([self._read(prompt)], sampling_params))

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    def close(self) -> None:
        """Release the model's memory; idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _read(self, prompt: Prompt) -> _ReadPrompt:
        cache_salt = ""
        if isinstance(prompt, Mapping):
            if unknown := prompt.keys() - PROMPT_KEYS:  # a salt that is misspelt must not be no salt
                wrong = ", ".join(map(repr, sorted(unknown, key=str)))
                raise TypeError(f"a prompt takes {', '.join(PROMPT_KEYS)}, not {wrong}")
            cache_salt = "" if prompt.get("cache_salt") is None else prompt["cache_salt"]
            if prompt.get("prompt_token_ids") is not None:
                return _ReadPrompt(prompt.get("prompt"), list(prompt["prompt_token_ids"]), cache_salt)
            prompt = prompt.get("prompt", prompt)
        if isinstance(prompt, str):
            return _ReadPrompt(prompt, self._tokenizer.encode(prompt), cache_salt)
        if isinstance(prompt, Sequence) and all(isinstance(token_id, int) for token_id in prompt):
            return _ReadPrompt(None, [int(token_id) for token_id in prompt], cache_salt)
        raise TypeError(f"a prompt is text, token ids, or a dict with 'prompt' or 'prompt_token_ids', not {prompt!r}")

    def _requests(
        self, prompts: Sequence[_ReadPrompt], sampling: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        shared = SamplingParams() if sampling is None else sampling
        each = list(shared) if isinstance(shared, Sequence) else [shared] * len(prompts)
        for params in each:
            if not isinstance(params, SamplingParams):
                raise TypeError(f"sampling_params must be SamplingParams, got {params!r}")
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(each)} sampling_params")
        requests = []
        for index, (prompt, params) in enumerate(zip(prompts, each, strict=True)):
            number = next(self._numbers)
            seed = _derived_seed(self._seed, number) if params.seed is None else params.seed
            with _naming_prompt(index):
                request = Request(
                    request_id=str(number),
                    prompt_token_ids=tuple(prompt.token_ids),
                    sampling=replace(params, seed=seed),
                    eos_token_ids=self._tokenizer.eos_token_ids,
                    arrival_s=time.monotonic(),
                    cache_salt=prompt.cache_salt,
                )
                request.check_token_ids(self.info.vocab_size)
            requests.append(request)
        return requests

    def _complete(
        self,
        prompts: Sequence[_ReadPrompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        requests = self._requests(prompts, sampling)
        choices = {(one.request_id, index): ChoiceText() for one in requests for index in range(one.sampling.n)}
        num_prompt_tokens = {one.request_id: len(one.prompt_token_ids) for one in requests}
        num_unfinished = {one.request_id: one.sampling.n for one in requests}
        num_in = num_out = 0
        start_s = time.monotonic()
        bar = tqdm(total=len(requests), desc="Processed prompts", disable=not use_tqdm, dynamic_ncols=True)
        with bar, closing(self._run(requests)) as deltas:
            for delta in deltas:
                choices[delta.seq_id].push(delta)
                num_out += len(delta.tokens)
                if delta.finish_reason is None:
                    continue
                request_id = delta.seq_id[0]
                num_unfinished[request_id] -= 1
                if not num_unfinished[request_id]:
                    num_in += num_prompt_tokens[request_id]
                    elapsed_s = time.monotonic() - start_s
                    speed = f"input {num_in / elapsed_s:.1f}, output {num_out / elapsed_s:.1f} tokens/s"
                    bar.set_postfix_str(speed, refresh=False)
                    bar.update()
        return [
            request_output(one, read.text, [choices[one.request_id, i] for i in range(one.sampling.n)], self._tokenizer)
            for one, read in zip(requests, prompts, strict=True)
        ]

    def _run(self, requests: Sequence[Request]) -> Deltas:
        """Queue all requests, or none, and yield what the steps give until all have finished."""
        engine = self._engine
        if engine is None:
            raise RuntimeError("this LLM is closed")
        if self._busy:
            raise RuntimeError("this LLM is in use: an earlier call has not ended")
        self._busy = True
        core = engine.core
        try:
            for index, request in enumerate(requests):
                with _naming_prompt(index):
                    core.add(request)
            core.flush()  # all of them are there
            while core.has_work:
                with _interrupt_held(), engine.recent.saved_if_broken():
                    deltas = core.step()
                    engine.collector.drain()  # nobody asks for them here, and they would pile up
                for delta in deltas:
                    yield delta
                    if self._engine is None:
                        raise RuntimeError("this LLM was closed while it generated")
        except InvariantViolation:
            self.close()  # its bookkeeping cannot be trusted any more
            raise
        finally:
            if core.has_work and self._engine is not None:
                for request in requests:
                    core.abort(request.request_id)
            self._busy = False


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    one_prompt = isinstance(prompts, str | Mapping) or (bool(prompts) and all(isinstance(one, int) for one in prompts))
    return [prompts] if one_prompt else list(prompts)


def _derived_seed(seed: int, number: int) -> int:
    return int.from_bytes(blake2b(f"{seed}/{number}".encode(), digest_size=8).digest())


@contextmanager
def _naming_prompt(index: int) -> Iterator[None]:
    try:
        yield
    except Rejected as error:
        raise Rejected(error.reason, f"prompt {index}: {error.message}", error.param, error.retry_after_s) from None


@contextmanager
def _interrupt_held() -> Iterator[None]:
    """Hold a Ctrl-C back until the step has ended, so that it never meets half a step; a second one is not held."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread alone
        return
    held: list[int] = []

    def hold(signum: int, _: FrameType | None) -> None:
        held.append(signum)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        signal.raise_signal(signal.SIGINT)
