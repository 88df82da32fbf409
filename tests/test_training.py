"""Teaching kernel models: what measurements add up, who sees which rows, and what is learned from them."""

import numpy as np
import pandas as pd
import pytest

from jaxscale import hardware_db
from jaxscale.cli.main import run
from jaxscale.errors import InputError
from jaxscale.kernels import Roofline
from jaxscale.kernels.weights import Measuring, read_weights
from jaxscale.measurement_format import check_measurements
from jaxscale.measurements import write_measurements
from jaxscale.timing import kernels_of, measured_seconds
from jaxscale.training import train
from jaxscale.training.calibrate import _quantiles
from jaxscale.training.folds import FOLDS, device_folds, held_out, shows, validation
from jaxscale.validate import judge, summary

V100 = "v100-sxm2-16gb"


def products(count=600, seed=0, devices=(V100, "p100-pcie-16gb", "t4"), source="made"):
    """Products that take the roofline over 0.6 plus 20 us each."""
    draw = np.random.default_rng(seed)
    sizes = 2 ** draw.uniform(6, 12, (count, 3))
    frame = pd.DataFrame(sizes.round(), columns=["m", "n", "k"])
    frame = frame.assign(
        family="matmul", direction="forward", precision="fp32", source=source, seconds=1.0,
        device=np.resize(devices, count),
    )  # fmt: skip
    exact = measured_seconds(frame, Roofline())
    launch = frame.device.map({name: float(hardware_db.device(name).launch_overhead) for name in devices})
    shares = frame.device.map({n: float(hardware_db.device(n).utilization["matmul"][0]) for n in devices})
    return check_measurements(frame.assign(seconds=(exact - launch) * shares / 0.6 + 20e-6))


# --- what a measurement adds up -------------------------------------------------------------------------


def test_a_layer_adds_up_three_products_and_what_was_timed_with_them():
    """64 x 1000 x 4096 three times in other orders; 1e9 B at 900e9 B/s; 3 + 2 kernels of 7 us."""
    row = {
        "family": "matmul", "direction": "training", "precision": "fp32", "device": V100, "source": "layers",
        "m": 64.0, "n": 1000.0, "k": 4096.0, "seconds": 1e-3, "extra_bytes": 1e9, "extra_kernels": 2.0,
    }  # fmt: skip
    frame = check_measurements(pd.DataFrame([row]))
    measuring = {("layers", "matmul"): Measuring(7e-6, {}, 0.5)}
    device = hardware_db.device(V100)
    one = max(2 * 64 * 1000 * 4096 / 15.7e12, 4 * (64 * 1000 + 64 * 4096 + 1000 * 4096) / 900e9)
    kernels = 3 * one / float(device.utilization["matmul"][0])
    assert measured_seconds(frame, Roofline(), measuring)[0] == pytest.approx(
        kernels + 5 * 7e-6 + 1e9 / 900e9 / 0.5, rel=1e-4
    )
    launch = float(device.launch_overhead)
    assert measured_seconds(frame, Roofline())[0] == pytest.approx(
        kernels + 5 * launch + 1e9 / 900e9, rel=1e-4
    )


def test_backward_of_a_batched_product_is_two_products():
    row = {"family": "batched_matmul", "direction": "backward", "precision": "fp16", "device": V100}
    frame = pd.DataFrame([row | {"batch": 8, "m": 2, "n": 3, "k": 5, "seconds": 1e-5}])
    (_, kernels), *rest = kernels_of(frame)
    assert not rest
    assert [kernel.dimensions[:, 0].tolist() for kernel in kernels] == [[8, 2, 5, 3], [8, 3, 5, 2]]


def test_a_deviating_device_has_its_own_overhead():
    frame = products(6)
    measuring = {("made", "matmul"): Measuring(1.0, {"t4": 3.0}, 1.0)}
    excess = measured_seconds(frame, Roofline(), measuring).round()
    assert excess.tolist() == [1, 1, 3, 1, 1, 3]


# --- who sees what --------------------------------------------------------------------------------------


def test_no_shape_is_taught_and_held_out_and_no_device_is_left_out_twice():
    frame = products()
    taught = ~held_out(frame) & ~validation(frame)
    assert not (held_out(frame) & validation(frame)).any()
    assert 0.15 < held_out(frame).mean() < 0.25
    chances = shows(frame)
    assert len(chances) == 1 + FOLDS
    assert (chances[:, held_out(frame)] == 0).all()
    assert (chances[0][taught] > 0).all()
    folds = device_folds(frame)
    assert sorted(folds) == sorted(set(frame.device))
    for device, fold in folds.items():
        assert (chances[1 + fold][(frame.device == device).to_numpy()] == 0).all()


def test_a_withheld_source_is_kept_from_one_member():
    frame = pd.concat([products(60), products(60, seed=1, source="apart")], ignore_index=True)
    chances = shows(frame, ("apart",))
    assert len(chances) == 2 + FOLDS
    apart = (frame.source == "apart").to_numpy()
    assert (chances[-1][apart] == 0).all()
    assert (chances[-1][~apart] > 0).any()
    assert len(shows(products(60, source="apart"), ("apart",))) == 1 + FOLDS


# --- what is learned ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taught():
    return train(products(), steps=400)


@pytest.mark.slow
def test_a_known_law_is_learned_from_other_shapes(taught):
    """The overhead and the utilization are found, and shapes never shown are predicted."""
    weights, judged = taught
    kept = judged[judged.held_out]
    assert (kept.expected / kept.seconds - 1).abs().mean() < 0.06
    assert weights.measuring["made", "matmul"].overhead == pytest.approx(20e-6, rel=0.3)


@pytest.mark.slow
def test_weights_repeat_what_training_expected(taught):
    """One formula while teaching, another while predicting."""
    weights, judged = taught
    again = measured_seconds(judged, weights.learned, weights.measuring)
    np.testing.assert_allclose(again, judged.expected, rtol=2e-2)


@pytest.mark.slow
def test_intervals_cover_what_they_promise(taught):
    weights, _ = taught
    scored = summary(judge(products(seed=7), weights), ["family"])
    assert scored.covered_95[0] >= 85
    assert scored.covered_80[0] >= 60
    assert scored.mape[0] < 6 < scored.roofline_mape[0]


def test_quantiles_count_every_device_the_same():
    """A device of a thousand kernels without error does not outvote one of ten with an error of 1."""
    scores = np.array([0.0] * 1000 + [1.0] * 10)
    devices = np.array([0] * 1000 + [1] * 10)
    assert _quantiles(scores, devices).tolist() == [1.0, 1.0]


def test_too_little_to_learn_from_is_refused():
    with pytest.raises(InputError, match="1 measured matmul kernels teach nothing, needed are 16 or more"):
        train(products(1))


# --- on the command line --------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_become_weights_that_every_command_uses(tmp_path, capsys):
    first, second, out = tmp_path / "a.csv", tmp_path / "b.parquet", tmp_path / "mine.npz"
    write_measurements(products(40), first)
    write_measurements(products(40, seed=1), second)
    assert run(["train-kernels", str(first), str(second), "--out", str(out), "--steps", "40"]) == 0
    captured = capsys.readouterr()
    assert "Error on shapes held out" in captured.out
    assert "taken from the weights that come with jaxscale" in captured.err
    assert read_weights(out).about["rows"] == 80
    assert run(["validate", "--measurements", str(first), "--kernels", str(out)]) == 0
    assert "Error by family" in capsys.readouterr().out
    assert run(["predict", "lenet-5", "--plan", "batch=8,dp=1,micro-batch=8", "--cluster", "v100",
                "--kernels", str(out)]) == 0  # fmt: skip


def test_bad_files_write_nothing(tmp_path, capsys):
    single, out = tmp_path / "single.csv", tmp_path / "mine.npz"
    write_measurements(products(1), single)
    assert run(["train-kernels", str(single), "--out", str(out)]) == 2
    assert "teach nothing" in capsys.readouterr().err
    assert run(["train-kernels", str(single), "--out", str(tmp_path / "mine.txt")]) == 2
    assert run(["train-kernels", str(tmp_path / "none.csv"), "--out", str(out)]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert run(["validate", "--measurements", str(single), "--kernels", "rofline"]) == 2
    assert "did you mean 'roofline'" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["single.csv"]


def test_validate_scores_the_roofline_exactly(tmp_path, capsys):
    frame = products(30)
    frame = frame.assign(seconds=measured_seconds(frame, Roofline()))
    path, plot = tmp_path / "exact.csv", tmp_path / "agreement.png"
    write_measurements(frame, path)
    assert run(["validate", "--measurements", str(path), "--kernels", "roofline", "--plot", str(plot)]) == 0
    shown = capsys.readouterr().out
    assert "What was measured" in shown
    assert plot.stat().st_size > 1000
    scored = summary(judge(frame, None), ["device"])
    assert scored["rows"].tolist() == [10, 10, 10]
    assert (scored.mape < 1e-3).all()
