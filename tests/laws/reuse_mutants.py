"""Ways to get prefix caching and the host tier wrong: what is found, shared, evicted, copied, and given up."""

from laws.mutant import Mutant

COMMITS = """            if not isinstance(result, StepFailed) and (ending is None or ending.status is Status.FINISHED):
                self._kv.commit(seq)
"""


def _reuse(name: str, file: str, before: str, after: str, caught_by: str = "") -> Mutant:
    return Mutant(name, file, before, after, "reuse", caught_by)


REUSE_MUTANTS = (
    # What can be found, and by whom.
    _reuse(
        "a block is published before its step is done",
        "schedulers/continuous.py",
        "                step.rows.append(row)\n                position += 1\n",
        "                step.rows.append(row)\n                position += 1\n"
        "                early = self._book.sequences[row.seq_id]\n"
        "                stored, early.num_computed = early.num_computed, row.start + len(row.token_ids)\n"
        "                self._kv.commit(early)\n"
        "                early.num_computed = stored\n",
    ),
    _reuse(
        "the blocks of a failed row are published",
        "schedulers/continuous.py",
        COMMITS,
        "            if not isinstance(result, StepFailed):\n"
        "                if ending is not None and ending.status is Status.FAILED:\n"
        "                    seq.num_computed = len(seq.token_ids)\n"
        "                self._kv.commit(seq)\n",
    ),
    _reuse(
        "the blocks of a failed step are published",
        "schedulers/continuous.py",
        COMMITS,
        "            if isinstance(result, StepFailed) and ending is None:\n"
        "                stored, seq.num_computed = seq.num_computed, seq.num_computed + seq.retry_len\n"
        "                self._kv.commit(seq)\n"
        "                seq.num_computed = stored\n"
        "            elif ending is None or ending.status is Status.FINISHED:\n"
        "                self._kv.commit(seq)\n",
    ),
    _reuse(
        "tokens are not compared on a hit",
        "cache/prefix_hash.py",
        "entry.before == before and entry.tokens == tokens",
        "entry.before == before",
    ),
    _reuse(
        "what comes before is not compared on a hit",
        "cache/prefix_hash.py",
        "entry.before == before and entry.tokens == tokens",
        "entry.tokens == tokens",
    ),
    _reuse(
        "salt left out of the digests",
        "cache/prefix_hash.py",
        "seq.request.cache_salt.encode()",
        "b''",
    ),
    _reuse(
        "salt not compared on a hit",
        "cache/prefix_hash.py",
        "entry.before == before and",
        "(entry.before == before or isinstance(before, str)) and",
    ),
    _reuse(
        "salt left out of the radix tree",
        "cache/prefix_radix.py",
        "return tokens if index else (seq.request.cache_salt, *tokens)",
        "return tokens",
    ),
    _reuse(
        "a run grows although it has branches",
        "cache/prefix_radix.py",
        "elif node is not self._root and not node.branches:",
        "elif node is not self._root:",
    ),
    _reuse(
        "a partial block is shared",
        "cache/paged.py",
        "num_full, num_findable = seq.num_computed // self.block_size",
        "num_full, num_findable = self.num_blocks_for(seq.num_computed)",
    ),
    _reuse(
        "a full hit leaves no token to run",
        "cache/paged.py",
        "(seq.num_tokens - 1) // self.block_size",
        "seq.num_tokens // self.block_size",
    ),
    _reuse(
        "cached tokens are counted again after a preemption",
        "schedulers/continuous.py",
        "        if seq.status is Status.WAITING:\n",
        "        if True:\n",
    ),
    # Siblings.
    _reuse(
        "a sibling does not wait for what it could share",
        "schedulers/continuous.py",
        "if not self._awaits_sibling(seq):",
        "if True:",
    ),
    _reuse(
        "a sibling waits longer than it must",
        "schedulers/continuous.py",
        "sibling.num_computed < num_to_share",
        "sibling.num_computed <= num_to_share",
    ),
    _reuse(
        "a preemption leaves the door open",
        "schedulers/continuous.py",
        "newcomer = None if step.preempted else newcomer",
        "newcomer = newcomer",
    ),
    _reuse(
        "who is swapped out comes in again before that is done",
        "schedulers/continuous.py",
        "                newcomer = next(newcomers, None) if row else None  # who is refused closes the door\n"
        "            else:\n"
        "                row = self._continue(position, step)\n"
        "                newcomer = None if step.preempted else newcomer  # and so does a row that had to go\n",
        "                newcomer = next(newcomers, None) if row or step.swapped_out else None\n"
        "            else:\n"
        "                row = self._continue(position, step)\n"
        "                newcomer = None if step.preempted else newcomer\n"
        "                if step.swapped_out:\n"
        "                    newcomers = iter([seq for seq in self._waiting if seq.seq_id in step.swapped_out])\n"
        "                    newcomer = next(newcomers, None)\n",
        caught_by="L4: a row both scheduled and preempted",
    ),
    # Who holds a block, and which is given up.
    _reuse(
        "a block that is held is evicted",
        "cache/pool.py",
        "            self._cached.pop(block, None)\n",
        "",
    ),
    _reuse(
        "a reference is not counted where a block is found",
        "cache/pool.py",
        "            self._cached.pop(block, None)\n            self._ref_counts[block] += 1\n",
        "            self._cached.pop(block, None)\n",
    ),
    _reuse("a prefix is given up from its beginning", "cache/pool.py", "in reversed(table):", "in table:"),
    _reuse(
        "the block used last is evicted", "cache/pool.py", "next(iter(self._cached))", "next(reversed(self._cached))"
    ),
    _reuse(
        "blocks are evicted while others are empty",
        "cache/pool.py",
        "self._empty.pop() if self._empty else self._evict()",
        "self._evict() if self._cached else self._empty.pop()",
    ),
    _reuse("a merged block is not released", "cache/paged.py", "self._pool.release((own,))", "pass"),
    _reuse("a merged block is not shared", "cache/paged.py", "self._pool.share((block,))", "pass"),
    _reuse(
        "cached blocks are promised twice",
        "schedulers/admission.py",
        "self.num_blocks(newcomer) - reuse.num_shared",
        "self.num_blocks(newcomer) - len(reuse.found)",
    ),
    _reuse(
        "not all is reserved for those who run",
        "schedulers/admission.py",
        "for row in (*running, newcomer)) <= self._kv.num_blocks",
        "for row in (newcomer,)) <= self._kv.num_free_blocks",
    ),
    _reuse(
        "nothing pauses after a preemption",
        "schedulers/admission.py",
        "        self._paused = True\n",
        "        self._paused = False\n",
    ),
    _reuse(
        "the high mark does not count the newcomer",
        "schedulers/admission.py",
        "num_held + num_more <= self._high_blocks",
        "num_held <= self._high_blocks",
    ),
    _reuse(
        "the future is looked at only until the first row ends",
        "schedulers/admission.py",
        "for end, last in enumerate(rows, 1):",
        "for end, last in [(len(rows), rows[-1])]:",
    ),
    # The host tier.
    _reuse(
        "a swapped row's host blocks are freed before its step is done",
        "cache/host_tier.py",
        "        self.num_copied_in += len(copies)\n        return copies",
        "        self.num_copied_in += len(copies)\n        self.drop(seq_id)\n        return copies",
    ),
    _reuse(
        "host blocks are never freed",
        "cache/paged.py",
        "        self._host.arrived(seq_id)\n",
        "",
    ),
    _reuse(
        "a row that is swapped out and given up leaks",
        "cache/paged.py",
        "        self._free_here(seq_id)\n        self._host.drop(seq_id)\n",
        "        self._free_here(seq_id)\n",
    ),
    _reuse(
        "swapping out forgets a block",
        "cache/paged.py",
        "[: self.num_blocks_for(seq.num_computed)]",
        "[: seq.num_computed // self.block_size]",
    ),
    _reuse(
        "what is found is copied in all the same",
        "cache/host_tier.py",
        "pairs = list(zip(table, here, strict=False))[num_found:]",
        "pairs = list(zip(table, here, strict=False))",
    ),
    _reuse(
        "what comes in goes out",
        "cache/host_tier.py",
        "BlockCopy(False, block, host_block)",
        "BlockCopy(True, block, host_block)",
    ),
    _reuse(
        "a step that is run again does not copy again",
        "schedulers/continuous.py",
        "        step.copies += self._kv.coming_in(seq.seq_id)\n",
        "",
    ),
    _reuse(
        "a row swapped out in a failed step keeps its host blocks",
        "schedulers/continuous.py",
        "                self._kv.free(seq_id)\n                if seq_id in",
        "                if seq_id in",
    ),
    _reuse(
        "a row swapped out in a failed step is taken to be there",
        "schedulers/continuous.py",
        "for seq_id in output.swapped_out:",
        "for seq_id in ():",
    ),
    _reuse(
        "a row that enters again starts behind the blocks that were found",
        "cache/paged.py",
        "num_tokens = max(len(found) * self.block_size, num_stored)",
        "num_tokens = len(found) * self.block_size or num_stored",
    ),
)
