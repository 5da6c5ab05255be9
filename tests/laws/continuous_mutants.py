"""Ways to get continuous batching wrong, and what every scheduler shares: queue, budgets, blocks, progress."""

from laws.mutant import Mutant

CONTINUOUS_MUTANTS = (
    Mutant(
        "block count off by one",
        "cache/paged.py",
        "return -(-num_tokens // self.block_size)",
        "return num_tokens // self.block_size",
    ),
    Mutant(
        "missing reference count",
        "cache/pool.py",
        "        for block in blocks:\n            self._ref_counts[block] += 1\n        return blocks",
        "        return blocks",
    ),
    Mutant(
        "free at preemption before the step ends",
        "schedulers/preemption.py",
        "range(len(running) - 1, position - 1, -1)",
        "range(len(running))",
    ),
    Mutant(
        "table not extended for the last token",
        "schedulers/continuous.py",
        "seq.num_computed + num_tokens)",
        "seq.num_computed + num_tokens - 1)",
    ),
    Mutant(
        "chunk one token too long",
        "core/budget.py",
        "return 1 + num_extra",
        "return 2 + num_extra",
    ),
    Mutant(
        "door closes the loop",
        "schedulers/continuous.py",
        "                newcomer = next(newcomers, None) if row else None",
        "                newcomer = next(newcomers, None) if row else None\n"
        "                if row is None:\n                    return step",
    ),
    Mutant(
        "budget charged twice",
        "core/budget.py",
        "        self.num_spare_tokens -= num_extra\n",
        "        self.num_spare_tokens -= 2 * num_extra\n",
    ),
    Mutant(
        "sampled token appended to the wrong sequence",
        "schedulers/progress.py",
        "tokens = sampled[row.seq_id] if",
        "tokens = next(iter(sampled.values())) if",
    ),
    Mutant(
        "finish without free",
        "schedulers/continuous.py",
        "        self._kv.free(seq.seq_id)\n        if seq.status is Status.RUNNING:",
        "        if seq.status is Status.RUNNING:",
    ),
    Mutant(
        "abort forgotten while in flight",
        "schedulers/continuous.py",
        "                seq.aborted = True\n",
        "                pass\n",
    ),
    Mutant(
        "a preempted row starts behind a token that nobody has stored",
        "schedulers/continuous.py",
        "        seq.num_computed = reuse.num_tokens\n",
        "        seq.num_computed = reuse.num_tokens + (seq.status is Status.PREEMPTED)\n",
    ),
    Mutant(
        "priority order reversed on equal arrival",
        "core/queue.py",
        "return (priority * ageing_s + now_s, index)",
        "return (-priority * ageing_s + now_s, index)",
    ),
    # Beyond the twelve: mistakes that this scheduler in particular invites.
    Mutant(
        "abort frees the blocks of a row in flight",
        "schedulers/continuous.py",
        "                seq.aborted = True\n",
        "                seq.aborted = True\n                self._kv.free(seq.seq_id)\n",
    ),
    Mutant(
        "a protected row is evicted",
        "schedulers/preemption.py",
        "if not promises.is_protected(running[index]):",
        "if True:",
        "reuse",
    ),
    Mutant(
        "what is set aside for protected rows is taken by others",
        "cache/paged.py",
        "self._pool.num_free - self._num_set_aside + num_own",
        "self._pool.num_free",
    ),
    Mutant(
        "admission looks at the running rows' tokens only as they are",
        "schedulers/admission.py",
        "seq.num_tokens + NUM_HEADROOM_TOKENS",
        "seq.num_tokens",
    ),
    Mutant(
        "a failed step advances its rows",
        "schedulers/progress.py",
        "    seq.retry_len = len(row.token_ids)\n",
        "    seq.num_computed += len(row.token_ids) - 1\n",
    ),
    Mutant(
        "an end token before min_tokens",
        "schedulers/progress.py",
        "if seq.num_output_tokens >= sampling.min_tokens:",
        "if True:",
    ),
    Mutant(
        "a contiguous piece is one block short",
        "cache/contiguous.py",
        "range(piece * self._piece, (piece + 1) * self._piece)",
        "range(piece * self._piece, (piece + 1) * self._piece - 1)",
        "contiguous",
    ),
)
