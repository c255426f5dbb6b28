"""The pages of parquet files: how large they become, whatever the file says of all of them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pyarrow.parquet
import pytest

from dht.errors import BadInput
from peer.training.data.reading.parquet_pages import pages_of, row_groups
from tests.peer.training.data.read_whole import read_files

TEXTS = [f"text {number % 7}" * (number % 50) for number in range(3000)]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("packing", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("has_dictionary", [False, True])
def test_pages_come_to_what_an_honest_file_says(version: str, packing: str, has_dictionary: bool) -> None:
    """Of which the heads are a part, some ten bytes each, and the least and the largest cell in it."""
    file = io.BytesIO()
    table = pyarrow.table({"text": TEXTS, "n": list(range(3000)), "list": [[1, None], []] * 1500})
    pyarrow.parquet.write_table(
        table, file, compression=packing, data_page_version=version, use_dictionary=has_dictionary, data_page_size=2000,
        write_page_checksum=True,
    )  # fmt: skip
    (ours,) = row_groups(file)
    group = pyarrow.parquet.ParquetFile(file).metadata.row_group(0)
    assert (ours.rows, len(ours.chunks)) == (3000, group.num_columns)
    for number, ours_of_it in enumerate(ours.chunks):
        chunk = group.column(number)
        assert (ours_of_it.path, ours_of_it.packed_bytes) == (chunk.path_in_schema, chunk.total_compressed_size)
        pages = list(pages_of(file, ours_of_it))
        sizes = [page.unpacked_bytes for page in pages]
        assert sum(page.values for page in pages) == chunk.num_values
        assert 10 * len(sizes) < chunk.total_uncompressed_size - sum(sizes) < 1200 * len(sizes)
        assert len(sizes) > 1


def test_a_large_page_among_small_ones_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell in a thousand, of bytes that nothing packs."""
    monkeypatch.setattr("peer.training.data.reading.file_rows.MOST_PAGE", 2 << 20)
    cells = ["small"] * 1000 + [os.urandom(3 << 20).hex()]
    pyarrow.parquet.write_table(pyarrow.table({"text": cells}), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=r"a\.parquet has cells that claim 6 MiB"):
        list(read_files(str(tmp_path), "text"))


@pytest.mark.parametrize("junk", [b"\xff" * 200, b"\x80" * 200, bytes(200), b"\x1c" * 200, b"\x15\x00\x15\x02"])
def test_what_is_no_page_is_told(junk: bytes, tmp_path: Path) -> None:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a" * 300]}), file, compression="none", use_dictionary=False)
    payload = bytearray(file.getvalue())
    payload[4 : 4 + len(junk)] = junk
    (tmp_path / "a.parquet").write_bytes(payload)
    with pytest.raises(BadInput, match=r"a\.parquet "):
        list(read_files(str(tmp_path), "text"))
