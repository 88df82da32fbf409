"""Pictures are files of the format that their name says."""

import builtins

import pytest
from test_report import candidate

from jaxscale.errors import InputError
from jaxscale.plots import draw_lines, draw_plans, require_picture

STARTS = {"png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.mark.parametrize("suffix", STARTS)
def test_formats(tmp_path, suffix):
    lines = {"1 GB/s": ([64.0, 128.0], [10.0, 20.0]), "2 GB/s": ([64.0], [20.0])}
    path = draw_lines(tmp_path / f"lines.{suffix}", lines, "batch", "samples/s", "a title", "bandwidth (B/s)")
    assert path.read_bytes().startswith(STARTS[suffix])
    assert list(tmp_path.iterdir()) == [path]


def test_plans(tmp_path):
    path = draw_plans(tmp_path / "plans.png", [candidate(), candidate(1.5)], "two plans")
    assert path.read_bytes().startswith(STARTS["png"])


def test_labels_are_in_the_picture(tmp_path):
    path = draw_lines(tmp_path / "a.svg", {"": ([1.0, 2.0], [1.0, 2.0])}, "gpus", "samples/s", "vgg16")
    assert "samples/s" in path.read_text() and "vgg16" in path.read_text()


@pytest.mark.parametrize("name", ["a.pgn", "a", "missing/a.png"])
def test_refused_before_anything_is_drawn(tmp_path, name):
    with pytest.raises(InputError):
        require_picture(tmp_path / name)


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    plain = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"pip install jaxscale\[viz\]"):
        require_picture(tmp_path / "a.png")
