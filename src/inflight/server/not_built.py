"""Fields of the OpenAI API and of vLLM that are known and not built yet, and the values of each that ask for nothing.

To ignore such a field would be to answer another question than the one that was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.core.errors import Reason, Rejected

_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    # OpenAI
    "audio": (),
    "echo": (False,),
    "function_call": ("none", "auto"),  # auto without functions is none
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),  # auto without tools is none
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
    # vLLM
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}


def refuse_not_built(body: Mapping[str, Any]) -> None:
    """Raise ``Rejected`` if ``body`` asks for something that is known and not built yet."""
    for name, asks_nothing in _ASKS_NOTHING.items():
        if body.get(name) is not None and body[name] not in asks_nothing:
            raise Rejected(Reason.INVALID, f"{name} is not supported yet", name)
    best_of = body.get("best_of")
    if best_of is not None and best_of != (1 if body.get("n") is None else body["n"]):
        raise Rejected(Reason.INVALID, "best_of other than n is not supported yet", "best_of")
