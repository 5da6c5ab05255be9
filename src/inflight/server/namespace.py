"""Whose requests may share stored keys and values: those of one API key, and of one ``cache_salt``."""

from __future__ import annotations

from hashlib import blake2b

from fastapi import Request

_DIGEST_BYTES = 16


class Namespace:
    """The requests of one API key; without keys, of everybody.

    It remembers no key, only a digest (BLAKE2, RFC 7693) under the ``secret`` of the process, so that nothing that
    leaves it tells a key or can be computed by a caller.
    """

    def __init__(self, secret: bytes, api_key: bytes) -> None:
        # A digest of fixed length comes first: no key and salt, joined, read like another key and salt.
        self._state = blake2b(blake2b(api_key, key=secret).digest(), key=secret, digest_size=_DIGEST_BYTES)

    def cache_salt(self, given: str) -> str:
        """The ``Request.cache_salt`` of a caller's own, which is empty where the caller gave none."""
        state = self._state.copy()
        state.update(given.encode())
        return state.hexdigest()


def namespace(request: Request) -> Namespace:
    """The namespace of the API key that came with ``request``."""
    found: Namespace = request.state.namespace
    return found
