"""Files appear whole or not at all."""

import json
import os
import stat

import pandas as pd
import pyarrow.parquet as pq
import pytest

from jaxscale.errors import InputError
from jaxscale.files import PICTURE_FORMATS, require_writable, write_atomically, write_table

ROWS = [
    {"network": "vgg16", "global_batch_size": 64, "step_time": 0.125},
    {"network": "alexnet", "global_batch_size": 128, "step_time": 1 / 3},
]


@pytest.mark.parametrize("failure", [ValueError("the writer gave up"), KeyboardInterrupt(), SystemExit(143)])
def test_a_failing_writer_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    target = tmp_path / "plans.csv"
    target.write_text("old")

    def write(path):
        path.write_text("half of the n")
        raise failure

    with pytest.raises(type(failure)):
        write_atomically(target, write)
    assert [path.name for path in tmp_path.iterdir()] == ["plans.csv"]
    assert target.read_text() == "old"


def test_a_full_disk_is_one_sentence(tmp_path):
    def write(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"cannot write .*plans\.csv': No space left on device"):
        write_atomically(tmp_path / "plans.csv", write)
    assert list(tmp_path.iterdir()) == []


def test_the_writer_sees_the_suffix_and_the_folder(tmp_path):
    seen = []
    write_atomically(tmp_path / "picture.png", lambda path: (seen.append(path), path.write_bytes(b"\x89PNG")))
    assert (seen[0].suffix, seen[0].parent) == (".png", tmp_path)
    assert (tmp_path / "picture.png").read_bytes() == b"\x89PNG"


def test_a_new_file_has_ordinary_permissions_and_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "plans.csv", tmp_path / "latest.csv"
    write_atomically(target, lambda path: path.write_text("first"))
    plain = tmp_path / "plain"
    plain.write_text("")
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    link.symlink_to(target)
    write_atomically(link, lambda path: path.write_text("second"))
    assert link.is_symlink()
    assert target.read_text() == "second"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/plans.csv", "there is no folder"),
        ("folder.csv", "not an ordinary file"),
        ("pipe.csv", "not an ordinary file"),
        ("file/plans.csv", "there is no folder"),
        ("plans.parq", r"did you mean '\.parquet'"),
        ("plans", "unknown file format ''"),
    ],
)
def test_unwritable_outputs_are_refused(tmp_path, name, message):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match=message):
        write_table(ROWS, tmp_path / name)


def test_pictures_have_formats_of_their_own(tmp_path):
    assert require_writable(tmp_path / "curve.PNG", PICTURE_FORMATS) == tmp_path / "curve.PNG"
    with pytest.raises(InputError, match=r"did you mean '\.png'"):
        require_writable(tmp_path / "curve.pgn", PICTURE_FORMATS)


@pytest.mark.parametrize("rows", [ROWS, pd.DataFrame(ROWS)], ids=["rows", "frame"])
def test_every_format_reads_back(tmp_path, rows):
    metadata = {"step_time": "s"}
    parquet, csv, as_json = (
        write_table(rows, tmp_path / f"plans{suffix}", metadata) for suffix in (".parquet", ".csv", ".json")
    )
    pd.testing.assert_frame_equal(pd.read_parquet(parquet), pd.DataFrame(ROWS))
    pd.testing.assert_frame_equal(pd.read_csv(csv), pd.DataFrame(ROWS))
    assert json.loads(as_json.read_text()) == [
        {**row, "step_time": pytest.approx(row["step_time"], rel=1e-14)} for row in ROWS
    ]
    assert pq.read_schema(parquet).metadata[b"step_time"] == b"s"
