"""Text to tokens and back, for one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inflight.core.errors import Reason, Rejected
from inflight.core.request import TokenId
from inflight.text.chat_template import ChatTemplate
from inflight.text.from_folder import from_folder
from inflight.text.from_gguf import from_gguf
from inflight.text.parts import TokenizerParts
from inflight.text.token_bytes import spelling_decoder


class Tokenizer:
    """A model's tokenizer and chat template. May be used from several threads at once."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._prefix_token_ids = parts.prefix_token_ids
        self._chat_template = ChatTemplate(parts.chat_template, parts.special_tokens)
        self._decode_spelling, self.drops_leading_space = spelling_decoder(parts.backend)
        self._token_bytes: dict[TokenId, bytes] = {}
        self.vocab_size = 1 + max(parts.backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self.eos_token_ids = parts.eos_token_ids
        self.special_token_ids = frozenset(
            token_id for token_id, token in parts.backend.get_added_tokens_decoder().items() if token.special
        )

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a .gguf file, or a folder with tokenizer.json. Raises ``UnsupportedTokenizer``."""
        return cls(from_folder(path) if path.is_dir() else from_gguf(path))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[TokenId]:
        """The tokens of ``text``; special tokens spelled out in it are recognised.

        Raises ``Rejected`` for text that is not Unicode, which JSON can carry: a lone surrogate.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Rejected(
                Reason.INVALID,
                f"the text is not valid Unicode: a lone surrogate, U+{ord(text[error.start]):04X}, "
                f"at character {error.start}",
            ) from None
        token_ids: list[TokenId] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return [*self._prefix_token_ids, *token_ids] if add_special_tokens else token_ids

    def decode(self, token_ids: Sequence[TokenId], skip_special_tokens: bool = True) -> str:
        """The text of ``token_ids``; bytes that are not UTF-8 become U+FFFD.

        No spaces are tidied away: the text is what the tokens say. Raises ``Rejected`` for an id outside
        ``[0, vocab_size)``.
        """
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise Rejected(Reason.INVALID, f"token id {token_id} is outside the vocabulary [0, {self.vocab_size})")
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        joined = b"".join(self.token_bytes(token_id) for token_id in token_ids if token_id not in skipped)
        text = joined.decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.drops_leading_space else text

    def token_bytes(self, token_id: TokenId) -> bytes:
        """The exact bytes of one token; joined, they are the UTF-8 of the text. An id without a token has none.

        (Models pad their vocabularies, so that such an id can be sampled.)
        """
        known = self._token_bytes.get(token_id)
        if known is None:
            spelling = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
            known = b"" if spelling is None else self._decode_spelling(spelling)
            self._token_bytes[token_id] = known
        return known

    def render_chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The prompt that the model's chat template makes of ``messages``; encode it without special tokens.

        A message has a ``role`` and a ``content``: a string, or a list of ``{"type": "text", "text": ...}`` parts.
        Raises ``Rejected`` for anything else, for a model without a template, and where the template refuses.
        """
        return self._chat_template.render(messages, add_generation_prompt)
