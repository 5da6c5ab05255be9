import pytest

from inflight.compare.config import CompareConfig
from inflight.compare.variants import variants


def test_all_families_have_the_same_seats_and_the_asked_order() -> None:
    config = CompareConfig(families="continuous, static", num_seats=5, with_no_padding=True, with_contiguous=True)
    chosen = variants(config)
    assert [one.name for one in chosen] == [
        *("static", "static_ragged", "continuous", "continuous_unchunked", "continuous_contiguous")
    ]
    assert {one.scheduler.num_seats for one in chosen} == {5}
    assert len({one.title for one in chosen}) == len(chosen)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_wait_ms": -1.0}, "max_wait_ms"),
        ({"num_seats": 8, "max_num_batched_tokens": 4}, "max_num_batched_tokens"),
    ],
)
def test_what_a_scheduler_refuses_is_named(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        variants(CompareConfig(**values))  # type: ignore[arg-type]
