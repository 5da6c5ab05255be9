from contextlib import suppress
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.text.gguf_metadata import read_gguf_metadata
from text.tiny import write_gguf


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def short_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of value, in a few hundred bytes."""
    path = tmp_path_factory.mktemp("gguf") / "short.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -30_000)
    writer.add_int32("i32", -(2**31))
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**63))
    writer.add_bool("yes", True)
    writer.add_string("text", "日本語\0😀")
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("texts", ["a", "", "é"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("which", ["file", "short_file"])
def test_reads_what_the_gguf_package_reads(which: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(which)
    fields = gguf.GGUFReader(path).fields
    want = {key: field.contents() for key, field in fields.items() if not key.startswith("GGUF.")}
    got = {key: list(value) if isinstance(value, tuple) else value for key, value in read_gguf_metadata(path).items()}
    assert got == want


def test_every_cut_is_a_value_error(short_file: Path, tmp_path: Path) -> None:
    whole = short_file.read_bytes()
    metadata = read_gguf_metadata(short_file)
    cut = tmp_path / "cut.gguf"
    num_refused = 0
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        try:
            assert read_gguf_metadata(cut) == metadata  # only padding was cut off
        except ValueError:
            num_refused += 1
    assert num_refused >= len(whole) - 32


@given(changes=st.lists(st.tuples(st.integers(4, 2**20), st.integers(0, 255)), min_size=1, max_size=8))
def test_damage_is_a_value_error_or_other_values(short_file: Path, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(short_file.read_bytes())
    for position, byte in changes:
        damaged[position % len(damaged)] = byte
    path = short_file.with_name("damaged.gguf")
    path.write_bytes(damaged)
    with suppress(ValueError):
        assert isinstance(read_gguf_metadata(path), dict)


def test_arrays_nested_without_end(tmp_path: Path) -> None:
    nested = (9).to_bytes(4, "little") + (1).to_bytes(8, "little")
    head = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little")
    path = tmp_path / "deep.gguf"
    path.write_bytes(head + (1).to_bytes(8, "little") + b"k" + (9).to_bytes(4, "little") + nested * 100_000)
    with pytest.raises(ValueError, match="damaged"):
        read_gguf_metadata(path)
