"""The benchmark of the search on a GPU, where there is none."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu.py"
if not SCRIPT.is_file():
    pytest.skip("the benchmarks are not part of an installed package", allow_module_level=True)


def test_it_says_in_one_sentence_that_there_is_no_gpu():
    without = os.environ | {"JAX_PLATFORMS": "cpu"}
    finished = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, env=without)
    assert (finished.returncode, finished.stdout) == (1, "")
    assert finished.stderr.startswith("gpu: JAX sees no GPU here, its default device is cpu")
    assert finished.stderr.count("\n") == 1
