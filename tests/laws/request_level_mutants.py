"""Ways to get request-level batching wrong: when a batch leaves, with whom, what is computed, what comes back."""

from laws.mutant import Mutant

REQUEST_LEVEL_MUTANTS = (
    # Request-level batching: when a batch leaves.
    Mutant(
        "the window opens with the newest arrival",
        "schedulers/forming.py",
        "min(seq.request.arrival_s for seq in rows)",
        "max(seq.request.arrival_s for seq in rows)",
        "static",
    ),
    Mutant(
        "the window opens with the head of the order and not with the oldest",
        "schedulers/forming.py",
        "min(seq.request.arrival_s for seq in rows)",
        "rows[0].request.arrival_s",
        "static",
    ),
    Mutant(
        "the window opens when the last batch leaves",
        "schedulers/request_level.py",
        "            self._seats = [_Seat(seq) for seq in batch.rows]\n",
        "            self._seats = [_Seat(seq) for seq in batch.rows]\n"
        "            for seq in self._reception.waiting:\n"
        "                object.__setattr__(seq.request, 'arrival_s', now_s)\n",
        "dynamic",
    ),
    Mutant(
        "a window that closes now is still open",
        "schedulers/forming.py",
        "closes_s <= now_s",
        "closes_s < now_s",
        "dynamic",
    ),
    Mutant(
        "the lane sleeps past the window",
        "schedulers/forming.py",
        "wake_at_s = min(wakes_s, default",
        "wake_at_s = max(wakes_s, default",
        "dynamic",
    ),
    Mutant(
        "a flush is forgotten",
        "schedulers/request_level.py",
        "return seq.key[1] < self._num_flushed",
        "return False",
        "static",
    ),
    Mutant(
        "a flush lasts for ever",
        "schedulers/request_level.py",
        "return seq.key[1] < self._num_flushed",
        "return self._num_flushed > 0",
        "static",
    ),
    # With whom.
    Mutant(
        "one row more than the limit",
        "schedulers/forming.py",
        "size < min(len(rows), trigger.max_rows) and",
        "size < min(len(rows), trigger.max_rows + 1) and",
        "static",
    ),
    Mutant(
        "one row more than a preferred size",
        "schedulers/forming.py",
        "return preferred or",
        "return (preferred and min(preferred + 1, size)) or",
        "dynamic",
    ),
    Mutant(
        "the smallest preferred size",
        "schedulers/forming.py",
        "preferred = max((one for",
        "preferred = min((one for",
        "dynamic",
    ),
    Mutant(
        "the token budget forgets the padding",
        "schedulers/forming.py",
        "len(rows) * longest + num_new",
        "sum(seq.num_prompt_tokens for seq in rows) + num_new",
        "dynamic",
    ),
    Mutant(
        "the token budget forgets what will be generated",
        "schedulers/forming.py",
        "len(rows) * longest + num_new",
        "len(rows) * longest",
        "dynamic",
    ),
    Mutant(
        "rows fit as they are now and not as they will be",
        "schedulers/request_level.py",
        "self._kv.num_blocks_for(seq.max_num_stored) for",
        "self._kv.num_blocks_for(seq.num_tokens) for",
        "static",
    ),
    Mutant(
        "bins are served by their bounds",
        "schedulers/forming.py",
        "for rows in sorted(bins.values(), key=lambda rows: rows[0].key):",
        "for _, rows in sorted(bins.items()):",
        "dynamic",
    ),
    Mutant(
        "a bound belongs to the next bin",
        "schedulers/forming.py",
        "setdefault(bisect_left(trigger.length_bins, seq.num_prompt_tokens), [])",
        "setdefault(bisect_left(trigger.length_bins, seq.num_prompt_tokens + 1), [])",
        "dynamic",
    ),
    Mutant(
        "a newcomer joins a batch that runs",
        "schedulers/request_level.py",
        "        running = [seat.seq for seat in self._seats if seat.runs]\n        suspect",
        "        head = next(iter(self._reception.waiting), None)\n"
        "        if head and len(self._seats) < self._trigger.max_rows:\n"
        "            self._reception.waiting.remove(head)\n"
        "            self._book.move(head, Status.RUNNING, self._num_steps, 'joins')\n"
        "            self._seats.append(_Seat(head))\n"
        "        running = [seat.seq for seat in self._seats if seat.runs]\n        suspect",
        "static",
    ),
    # While it runs, and when it comes back.
    Mutant(
        "rows come back one by one",
        "schedulers/request_level.py",
        "        if not any(seat.runs for seat in self._seats):\n            events += self._release()\n",
        "        for seat in self._seats:\n"
        "            if seat.is_awaited and seat.ending is not None:\n"
        "                self._book.move(seat.seq, seat.ending.status, self._num_steps, seat.ending.cause)\n"
        "                events.append(event_of(seat.seq, tuple(seat.tokens), seat.ending))\n"
        "        if not any(seat.runs for seat in self._seats):\n            self._seats = []\n",
        "static",
    ),
    Mutant(
        "a row that has ended keeps its blocks",
        "schedulers/request_level.py",
        "            self._kv.free(seq.seq_id)\n            if ending.status is Status.FINISHED:\n",
        "            if ending.status is Status.FINISHED:\n",
        "static",
    ),
    Mutant(
        "scratch blocks are blocks of the rows",
        "schedulers/memory.py",
        "    num_left = num_blocks - num_scratch\n",
        "    num_left = num_blocks\n",
        "static",
    ),
    Mutant(
        "scratch blocks from the beginning of the memory",
        "schedulers/request_level.py",
        "tuple(range(num_blocks - num_scratch, num_blocks))",
        "tuple(range(num_scratch))",
        "static",
    ),
    Mutant(
        "scratch blocks for the pads alone",
        "schedulers/request_level.py",
        "max([num_pads, *(row.start + padded_to for row in dead)])",
        "num_pads",
        "static",
    ),
    Mutant(
        "padded to the shortest row",
        "schedulers/request_level.py",
        "padded_to = max(len(row.token_ids) for row in rows) if padded",
        "padded_to = min(len(row.token_ids) for row in rows) if padded",
        "static",
    ),
    Mutant(
        "a dead row runs past the end",
        "schedulers/request_level.py",
        "min(seat.seq.num_prompt_tokens + num_past_prompt, last)",
        "seat.seq.num_prompt_tokens + num_past_prompt",
        "static",
    ),
    Mutant(
        "a dead row stands where it was stored last",
        "schedulers/request_level.py",
        "min(seat.seq.num_prompt_tokens + num_past_prompt, last)",
        "min(seat.seq.num_computed, last)",
        "static",
    ),
    Mutant(
        "an aborted seat is empty",
        "schedulers/request_level.py",
        "            if not seat.runs\n        )",
        "            if seat.is_awaited\n        )",
        "static",
    ),
    Mutant(
        "the last abort takes the withheld with it",
        "schedulers/request_level.py",
        "            if any(seat.is_awaited for seat in self._seats):\n                leaving = leaving[1:]\n"
        "            else:\n                self._seats = []\n",
        "            self._seats = []\n",
        "static",
    ),
    Mutant(
        "all aborted rows are computed once more",
        "schedulers/request_level.py",
        "                leaving = leaving[1:]\n",
        "                leaving = []\n",
        "static",
    ),
    Mutant(
        "an abort forgets the withheld",
        "schedulers/request_level.py",
        "            if seat is not None and seat.runs:\n                seq.aborted = True\n",
        "            if seat is not None:\n                seq.aborted = True\n",
        "static",
    ),
    Mutant(
        "a failed row takes its company along",
        "schedulers/request_level.py",
        "[suspect] if suspect else running",
        "running",
        "static",
    ),
    Mutant(
        "a row that failed waits for the others to be told",
        "schedulers/request_level.py",
        "            if ending.status is Status.FINISHED:\n                seat.ending = ending\n",
        "            if ending.status in (Status.FINISHED, Status.FAILED):\n                seat.ending = ending\n",
        "static",
    ),
)
