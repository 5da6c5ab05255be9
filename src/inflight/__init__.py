"""inflight: a language-model server whose subject is batching."""

__version__ = "0.1.0"
