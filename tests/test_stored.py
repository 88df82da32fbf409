"""Stored programs: a second process does not trace, and nothing but the same program is ever taken."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
import pytest

from jaxscale import stored
from jaxscale.nouns import Exchange

TRACES = []


def scaled(rates, factor=2.0, power=None, names=()):
    """Stands for a function of the package; every run of its lines is a trace."""
    TRACES.append(1)
    total = sum(rates.values())
    return {"all": Exchange(total * factor, total**2, power(total) if power else rates["a"]), "none": None}


def cube(x):
    return x**3


@dataclass(frozen=True)
class Power:
    exponent: float

    def __call__(self, x):
        return x**self.exponent


for ours in (scaled, cube, Power):
    ours.__module__ = "jaxscale.somewhere"

RATES = {"a": np.arange(3.0, dtype=np.float32), "b": np.ones(3, np.float32)}


@pytest.fixture
def folder(tmp_path):
    TRACES.clear()
    stored.keep_in(tmp_path)
    yield tmp_path
    stored.keep_in(None)


def fresh(function=scaled):
    """What another process makes of the function."""
    return stored.jit(function, static_argnames=("factor", "power", "names"))


def traces(*args, function=scaled, **kwargs):
    """Result of a call in a new process, as it were, and how often it traced."""
    before = len(TRACES)
    result = fresh(function)(*args, **kwargs)
    return jax.tree.map(np.asarray, result), len(TRACES) - before


def check(result, last=RATES["a"]):
    assert list(result) == ["all", "none"]
    assert result["none"] is None
    assert isinstance(result["all"], Exchange)
    for found, wanted in zip(result["all"], ([2, 4, 6], [1, 4, 9], last), strict=True):
        np.testing.assert_array_equal(found, np.asarray(wanted, np.float32))


def test_a_program_is_traced_once_and_for_all(folder):
    for expected in (1, 0, 0):
        result, traced = traces(RATES)
        assert traced == expected
        check(result)
    assert len(list(folder.iterdir())) == 1


def test_one_function_traces_once_per_process_too(folder):
    call = fresh()
    for _ in range(3):
        check(call(RATES))
    assert len(TRACES) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"factor": 3.0},
        {"names": ("x", ("y", None, True))},
        {"power": cube},
        {"power": Power(2.0)},
        {"rates": {name: leaf[:2] for name, leaf in RATES.items()}},
        {"rates": {name: leaf.astype(np.int32) for name, leaf in RATES.items()}},
        {"rates": {"a": RATES["a"], "c": RATES["b"]}},
        {"rates": {"a": RATES["a"], "b": 1.0}},
    ],
    ids=["number", "tuple", "function", "dataclass", "shape", "type", "structure", "weak-type"],
)
def test_what_differs_is_another_program(folder, other):
    given = {"rates": RATES}
    assert traces(**given)[1] == 1
    assert traces(**given | other)[1] == 1
    assert traces(**given | other)[1] == 0
    assert traces(**given)[1] == 0


def test_the_values_of_a_dataclass_count(folder):
    for exponent in (2.0, 3.0):
        result, traced = traces(RATES, power=Power(exponent))
        assert traced == 1
        np.testing.assert_allclose(result["all"].ready, np.array([1, 2, 3.0]) ** exponent, rtol=1e-6)


def test_double_precision_is_another_program(folder):
    wide = {name: leaf.astype(np.float64) for name, leaf in RATES.items()}
    narrow, traced = traces(wide)
    assert (narrow["all"].forward.dtype, traced) == (np.float32, 1)
    for expected in (1, 0):
        with jax.enable_x64(True):
            result, traced = traces(wide)
        assert (result["all"].forward.dtype, traced) == (np.float64, expected)


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-1], lambda b: b[:-1] + bytes([b[-1] ^ 1])])
def test_a_damaged_file_is_replaced(folder, damage):
    traces(RATES)
    [file] = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    result, traced = traces(RATES)
    assert traced == 1
    check(result)
    assert traces(RATES)[1] == 0
    assert [path.name for path in folder.iterdir()] == [file.name]


def test_other_sources_are_traced_anew(folder, monkeypatch):
    traces(RATES)
    digest = stored._source_digest()
    changed = partial(str, "another digest")
    changed.__wrapped__ = changed
    monkeypatch.setattr(stored, "_source_digest", changed)
    assert [traces(RATES)[1], traces(RATES)[1]] == [1, 0]
    assert digest != changed()


def test_nothing_is_kept_when_sources_change_meanwhile(folder, monkeypatch):
    before = partial(str, "digest of what was imported")
    before.__wrapped__ = partial(str, "digest of what stands there now")
    monkeypatch.setattr(stored, "_source_digest", before)
    result, traced = traces(RATES)
    assert (traced, list(folder.iterdir())) == (1, [])
    check(result)


def test_the_digest_covers_linked_folders(tmp_path, monkeypatch):
    package, linked = tmp_path / "package", tmp_path / "search"
    for place in (package, linked, package / "__pycache__"):
        place.mkdir()
    (package / "search").symlink_to(linked)
    monkeypatch.setattr(stored, "__file__", str(package / "stored.py"))
    digests = []
    for path in ("stored.py", "search/space.py", "search/table.toml"):
        (package / path).write_text("x = 1")
        digests.append(stored._source_digest.__wrapped__())
        (package / "__pycache__" / "space.pyc").write_text(path)
        assert stored._source_digest.__wrapped__() == digests[-1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    "power", [lambda x: x, partial(cube), jax.numpy.square], ids=["lambda", "partial", "jax"]
)
def test_what_has_no_name_elsewhere_is_not_kept(folder, power):
    result, _ = traces(RATES, power=power)
    check(result, last=power(np.array([1.0, 2.0, 3.0])))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("function", [lambda x: 2 * x, jax.numpy.square], ids=["lambda", "jax"])
def test_functions_of_others_are_not_kept(folder, function):
    np.testing.assert_array_equal(stored.jit(function)(2.0), 4.0)
    assert list(folder.iterdir()) == []


def test_within_a_trace_it_is_a_function_like_any_other(folder):
    slope = jax.jit(jax.grad(lambda a: fresh()({**RATES, "a": a})["all"].forward.sum()))(RATES["a"])
    np.testing.assert_array_equal(slope, [2.0, 2.0, 2.0])
    assert list(folder.iterdir()) == []


def test_who_chooses_a_device_is_not_overruled(folder):
    with jax.default_device(jax.devices()[-1]):
        check(fresh()(RATES))
    assert list(folder.iterdir()) == []


def test_a_folder_that_takes_no_files_is_no_error(folder):
    stored.keep_in(folder / "gone")
    for _ in range(2):
        result, traced = traces(RATES)
        assert traced == 1
        check(result)


def test_an_error_in_the_function_is_raised_as_ever(folder):
    with pytest.raises(KeyError, match="'a'"):
        traces({"b": RATES["b"]})


EXPLAIN = """
import json, sys
import numpy as np
from jaxscale.runtime import use_compilation_cache
use_compilation_cache()
from jaxscale import engine, explain, hardware_db, zoo
from jaxscale.lowering import lower
from jaxscale.plans import PlanSpec
from jaxscale.search import Space, TopK, evaluate
traces, price = [], engine.price
def counted(*args):
    traces.append(1)
    return price(*args)
engine.price = explain.price = counted
network = zoo.build("lenet-5")
workload, cluster = lower(network), hardware_db.cluster("dgx-1-v100")
best = evaluate(Space(network, workload, cluster, global_batch_sizes=(64,)), [TopK(1)]).results[0][0]
found = explain.explain(network, workload, cluster, best.plan)
numbers = [float(best.prediction.step_time), *map(float, found.prediction.time), *found.elasticities.values()]
print(json.dumps([len(traces), [number.hex() for number in numbers]]))
"""


def test_another_process_finds_the_same_without_tracing(tmp_path):
    environment = {**os.environ, "JAXSCALE_CACHE_DIR": str(tmp_path)}
    runs = []
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", EXPLAIN], env=environment, capture_output=True, text=True)
        assert (run.returncode, run.stderr) == (0, "")
        runs.append(json.loads(run.stdout))
    (first, wanted), (second, found) = runs
    assert first > 0
    assert second == 0
    assert found == wanted
