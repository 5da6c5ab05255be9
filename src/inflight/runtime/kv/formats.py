"""The formats of KV in torch, by the name that ``kv_cache_dtype`` gives them; plain dtypes are ``kv/dense.py``'s."""

from __future__ import annotations

from inflight.runtime.kv.int4 import INT4
from inflight.runtime.kv.int8 import INT8

GROUP_FORMATS = {one.name: one for one in (INT8, INT4)}
