"""The only arithmetic on the tokens and seats that are left in a step."""

from __future__ import annotations


class Budget:
    """One token is set aside for every running row, so that all of them move; the spare ones are for prompts."""

    __slots__ = ("num_free_seats", "num_spare_tokens")

    def __init__(self, max_num_batched_tokens: int, max_num_seqs: int, num_running: int) -> None:
        self.num_spare_tokens = max_num_batched_tokens - num_running
        self.num_free_seats = max_num_seqs - num_running

    @property
    def is_spent(self) -> bool:
        """True where no waiting row could get a seat and a token."""
        return self.num_free_seats < 1 or self.num_spare_tokens < 1

    def continue_row(self, num_behind: int) -> int:
        """Tokens that a running row takes now: its own one, and as many spare ones as it can use."""
        num_extra = min(num_behind - 1, self.num_spare_tokens)
        self.num_spare_tokens -= num_extra
        return 1 + num_extra

    def offer_new_row(self, num_behind: int, whole: bool) -> int:
        """Tokens that a waiting row would get, 0 if it must wait; ``whole`` refuses to split a prompt."""
        if self.is_spent or (whole and num_behind > self.num_spare_tokens):
            return 0
        return min(num_behind, self.num_spare_tokens)

    def enter(self, num_tokens: int) -> None:
        """A waiting row takes a seat and ``num_tokens``."""
        self.num_free_seats -= 1
        self.num_spare_tokens -= num_tokens

    def leave(self) -> None:
        """A running row is preempted before it took anything: its seat and its own token are free."""
        self.num_free_seats += 1
        self.num_spare_tokens += 1
