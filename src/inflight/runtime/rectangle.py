"""A padded step as rows that a ragged forward pass can run: its pads and dead rows become sequences of their own.

The rectangle of request-level batching, ``[rows, padded_to]``, is laid out row by row: the pads of a row, then (left
padding) its tokens. Pads see each other and never the row beside them, and they write scratch blocks, as if a mask hid
them; so the tokens of a row have the positions 0 to n - 1 and the same bits as alone, while all of the rectangle is
computed. Dead rows come last and ask for logits, which nobody reads, because a batch computes those too.
"""

from __future__ import annotations

from collections.abc import Callable

from inflight.core.output import ScheduledSequence, SchedulerOutput
from inflight.core.request import SeqId, TokenId


def rows_of(output: SchedulerOutput, pad_token_id: Callable[[SeqId], TokenId]) -> tuple[ScheduledSequence, ...]:
    """All rows that the step computes, the dead ones at the end.

    ``pad_token_id`` says what the pads of a sequence are. No choice of it changes what a row gives.
    """
    width = output.padded_to
    if width is None:
        return output.scheduled
    rows = []
    for row in output.scheduled:
        num_pads = width - len(row.token_ids)
        if num_pads:
            pads = (pad_token_id(row.seq_id),) * num_pads
            rows.append(ScheduledSequence(row.seq_id, pads, 0, output.scratch_table, num_logits=0))
        rows.append(row)
    for dead in output.dead:
        pads = (pad_token_id(dead.seq_id),) * width
        rows.append(ScheduledSequence(dead.seq_id, pads, dead.start, output.scratch_table, num_logits=1))
    return tuple(rows)
