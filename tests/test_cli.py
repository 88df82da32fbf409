"""The subcommands: what they print, what they write, what they refuse."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest

from jaxscale import search, zoo
from jaxscale.cli.main import run
from jaxscale.cli.options import Messages, read_model
from jaxscale.cli.progress import Progress
from jaxscale.errors import InputError

SMALL = ("--cluster", "dgx-1-v100", "--batch", "64", "--messages", "1")
"""Programs with one gradient message compile fastest."""


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    """Leaves the caches of the machine alone."""
    monkeypatch.setattr("jaxscale.runtime.use_compilation_cache", lambda: None)


@pytest.fixture
def answer(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")

    def call(*args):
        code = run(args)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def answered(answer):
    def call(*args):
        code, out, err = answer(*args)
        assert code == 0, err
        return json.loads(out)

    return call


# --- models and hardware ---------------------------------------------------------------------------------


def test_models_lists_every_network(answer, answered):
    code, out, _ = answer("models")
    assert code == 0
    listed = {each["name"]: each for each in answered("models", "--json")}
    assert list(listed) == zoo.names()
    assert listed["resnet50"]["parameters"] == 25_557_032  # torchvision
    assert listed["resnet50"]["image_size"] == 224
    assert "25,557,032" in out
    assert answer("models", "list")[1] == out


def test_model_layers_add_up(answered, answer):
    shown = answered("models", "show", "AlexNet", "--json")
    assert sum(layer["parameters"] for layer in shown["layers"]) == shown["parameters"]
    assert sum(layer["multiply_adds"] for layer in shown["layers"]) == shown["multiply_adds"]
    assert "62,378,344" in answer("models", "show", "alexnet")[1]


def test_onnx_file_is_a_model(answered):
    onnx = pytest.importorskip("onnx")
    path = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    assert answered("models", "show", str(path), "--json")["parameters"] == 25_557_032


def test_unknown_operators_are_a_note(capsys, monkeypatch):
    def read(path, image_size):
        warnings.warn("unknown operators", UserWarning, stacklevel=1)
        return zoo.build("lenet-5")

    monkeypatch.setattr("jaxscale.onnx_import.read_onnx", read)
    assert read_model("a.onnx").name == "lenet-5"
    assert capsys.readouterr().err == "jaxscale: note: unknown operators\n"


def test_hardware(answer, answered):
    kinds = {line["kind"] for line in answered("hardware", "list", "--json")}
    assert kinds == {"device", "node", "network", "cluster"}
    assert {line["kind"] for line in answered("hardware", "list", "--kind", "nodes", "--json")} == {"node"}
    facts = {fact["key"]: fact for fact in answered("hardware", "show", "V100", "--json")}
    assert facts["memory_bandwidth"]["value"] == 900.0
    assert answer("hardware")[1] == answer("hardware", "list")[1]
    assert "900 GB/s" in answer("hardware", "show", "v100")[1]


@pytest.mark.parametrize(
    "words", [("models", "lenet-5"), ("hardware", "hdr"), ("hardware", "V100", "--json")]
)
def test_a_name_alone_is_shown(answer, words):
    group, *rest = words
    assert answer(*words) == answer(group, "show", *rest)
    assert answer(*words)[0] == 0


# --- predict -----------------------------------------------------------------------------------------------


def test_predict_terms_add_up(answered):
    plan = "dp=4,tp=2,micro-batch=8,split=model,overlap=no"
    found = answered("predict", "lenet-5", *SMALL, "--plan", plan, "--json")
    exposed = sum(value for key, value in found.items() if key.startswith("exposed_"))
    assert exposed == pytest.approx(found["step_time_s"])
    parts = ("weights", "gradients", "optimizer", "activations", "workspace", "buffers")
    assert sum(found[f"{part}_bytes"] for part in parts) == pytest.approx(found["peak_memory_bytes"])
    assert found["plan"]["num_microbatches"] == 2
    assert sum(found["bounds"].values()) == pytest.approx(1)


def test_predict_shows_a_breakdown(answer):
    code, out, err = answer(
        "predict", "lenet-5", *SMALL, "--plan", "dp=4,tp=2,micro-batch=8,split=model,overlap=no"
    )
    assert (code, err) == (0, "")
    for part in ("8 devices", "Time", "Memory", "Bound by", "Elasticities", "inter_node_bandwidth"):
        assert part in out


def test_a_format_without_a_rate_is_noted(answer):
    """V100: no FP8 on the data sheet, so FP16; H100: FP8 of its own."""
    given = ("--batch", "64", "--messages", "1", "--precision", "fp8", "--plan", "dp=1", "--json")
    code, _, err = answer("predict", "lenet-5", "--cluster", "dgx-1-v100", *given)
    assert code == 0
    [said] = err.splitlines()
    assert said.startswith("jaxscale: note: v100-sxm2-16gb has no matrix rate for fp8")
    assert said.endswith("at its fp16 rate")
    assert answer("predict", "lenet-5", "--cluster", "h100", *given)[2] == ""


def test_a_plan_beyond_the_cluster_is_infeasible(answer):
    code, out, err = answer("predict", "lenet-5", *SMALL, "--gpus", "4", "--plan", "dp=8,micro-batch=8")
    assert code == 1
    assert err == "jaxscale: error: the plan does not fit: it uses 8 devices of 4\n"
    assert "Time" in out


def test_a_plan_beyond_the_memory_is_infeasible(answer):
    given = ("--cluster", "dgx-1-v100", "--batch", "10000000", "--messages", "1")
    code, out, err = answer("predict", "lenet-5", *given, "--plan", "dp=1", "--json")
    assert code == 1
    assert json.loads(out)["feasible"] is False
    assert "GB too much" in err or "TB too much" in err


# --- optimize ----------------------------------------------------------------------------------------------


OPTIMIZE = ("optimize", "lenet-5", "--cluster", "dgx-1-v100", "--batch", "8:16:x2", "--tp", "1,2")


@pytest.fixture
def searched_once(monkeypatch):
    """Equal searches are made once; most of their time is compilation."""
    answers = {}

    def evaluate(space, reductions, **options):
        key = (space.global_batch_sizes, tuple(space.hardware))
        if key not in answers:
            answers[key] = search.evaluate(space, reductions, **options)
        return answers[key]

    monkeypatch.setattr("jaxscale.cli.problem.evaluate", evaluate)


def test_optimize_answers_in_every_form(answer, tmp_path, searched_once):
    table, picture = tmp_path / "plans.parquet", tmp_path / "plans.png"
    given = (*OPTIMIZE, "--messages", "1", "--top", "4", "--kernels", "roofline")
    code, out, err = answer(*given, "--out", str(table), "--plot", str(picture), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    plans = found["plans"]
    times = [plan["step_time_s"] / plan["global_batch_size"] for plan in plans]
    assert len(plans) == 4
    assert times == sorted(times)
    # A network this small is slower on all eight devices, which exchange gradients, than on fewer.
    assert plans[0]["devices"] < 8
    assert [plan["global_batch_size"] for plan in found["best_per_batch"]] == [8, 16]
    assert all(plan["devices"] == plan["dp"] * plan["tp"] for plan in plans)
    assert sum(found["bounds"].values()) == pytest.approx(1)
    assert found["search"]["candidates"] > 50
    assert picture.read_bytes().startswith(b"\x89PNG")
    written = pd.read_parquet(table)
    assert list(written["rank"]) == [1, 2, 3, 4]
    assert written["step_time_s"].tolist() == [plan["step_time_s"] for plan in plans]

    again, csv = tmp_path / "plans.json", tmp_path / "plans.csv"
    code, out, err = answer(*given, "--explain", "-o", str(again))
    assert (code, err) == (0, "")
    for part in ("Best plans", "Best plan of each batch", "Exposed time", "micro-", "candidates judged in"):
        assert part in out
    assert [row["rank"] for row in json.loads(again.read_text())] == [1, 2, 3, 4]
    assert answer(*given, "-o", str(csv))[0] == 0
    assert pd.read_csv(csv)["mfu"].tolist() == pytest.approx(written["mfu"].tolist())


TOO_BIG = ("vgg16", "--cluster", "titan-xp", "--batch", "64", "--micro-batch", "64", "--image-size", "512")


def test_nearest_miss_and_remedy(answer):
    code, out, err = answer("optimize", *TOO_BIG, "--messages", "1")
    assert (code, out) == (1, "")
    said, error = err.splitlines()
    assert said.endswith(
        "titan-xp has no matrix rate for fp16 in the hardware database, so matrix kernels run at"
        " its fp32 rate"
    )
    assert error.startswith(
        "jaxscale: error: no plan fits: the one that needs the least memory, batch=64,dp=1"
    )
    assert "too much" in error
    assert "it would fit with --micro-batch left out or --cluster " in error


# --- sweep -------------------------------------------------------------------------------------------------

VARIED = ("--vary", "batch=32,64", "--vary", "intra_node_bandwidth=1GB/s:100GB/s:x10", "--tp", "1,2")


def test_sweep_has_a_plan_for_every_combination(answer, tmp_path, searched_once):
    table, picture = tmp_path / "sweep.csv", tmp_path / "sweep.svg"
    given = ("sweep", "lenet-5", "--cluster", "dgx-1-v100", *VARIED, "--messages", "1")
    code, out, err = answer(*given, "--json", "--out", str(table), "--plot", str(picture))
    assert (code, err) == (0, "")
    found = json.loads(out)
    points = found["points"]
    assert found["varied"] == ["batch", "intra_node_bandwidth"]
    assert [(point["varied_batch"], point["intra_node_bandwidth_bytes_per_s"]) for point in points] == [
        (batch, rate) for batch in (32, 64) for rate in (1e9, 1e10, 1e11)
    ]
    for batch in (32, 64):
        steps = [point["step_time_s"] for point in points if point["varied_batch"] == batch]
        assert steps == sorted(steps, reverse=True)  # a faster link is never slower
    assert len(pd.read_csv(table)) == 6
    assert "intra node bandwidth (B/s)" in picture.read_text()
    code, out, _ = answer(*given)
    assert code == 0
    assert "10 GB/s" in out


# --- refusals: one sentence, exit code 2 ------------------------------------------------------------------

PREDICT = ("predict", "lenet-5", "--cluster", "dgx-1-v100", "--plan")
SWEEP = ("sweep", "lenet-5")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("optimize", "resnet5"), "unknown network 'resnet5': did you mean 'resnet50'"),
        (("optimize", "lenet-5", "--cluster", "dgx1-v100"), "did you mean 'dgx-1-v100'"),
        (("optimize", "--batch", "0"), "--batch: the count '0' is zero"),
        (("optimize", "--batch", "-4"), "--batch: the count '-4' is negative"),
        (("optimize", "--batch", "nan"), "--batch: the count 'nan'"),
        (("optimize", "--batch", "inf"), "--batch: the count 'inf' is infinite"),
        (("optimize", "--batch", "1e300"), "--batch is '1e300', allowed are at most"),
        (("optimize", "--batch", "1.5"), "--batch: the count '1.5' is not a whole number"),
        (("optimize", "--gpus", "12"), "12 GPUs do not fill nodes of 8"),
        (("optimize", "--gpus", "8,12"), "12 GPUs do not fill nodes of 8"),
        (("optimize", "--top", "1,2"), "--top is '1,2', but it takes one number"),
        (("optimize", "--precision", "fp17"), "unknown precision 'fp17': did you mean 'fp1"),
        (("optimize", "--optimizer", "adamw"), "unknown optimizer 'adamw': did you mean 'adam'"),
        (("optimize", "--algorithms", "rings"), "unknown algorithm 'rings': did you mean 'ring'"),
        (("optimize", "--kernels", "learnt"), "unknown kernel model 'learnt': did you mean 'learned'"),
        (("optimize", "--messages", "0"), "--messages: the count '0' is zero"),
        (("optimize", "--network", "hdrr"), "did you mean 'hdr'"),
        (("optimize", "--cluster", "."), "'.' is a folder, allowed are names and .toml files"),
        (("optimize", "missing.onnx"), "cannot read missing.onnx"),
        (("optimize", "models/net.pt"), "looks like a file, but only .onnx files can be read"),
        (("optimize", "lenet-5", "--image-size", "1"), "image_size 1 is too small"),
        (("optimize", "--out", "plans.xlsx"), "unknown file format '.xlsx'"),
        (("optimize", "--out", "no/such/plans.csv"), "there is no folder"),
        (("optimize", "--plot", "plans.bmp"), "unknown file format '.bmp'"),
        (("optimize", "--batch", "7", "--tp", "1", "--gpus", "8,16"), "no plan divides"),
        (("predict", "lenet-5", "--plan", "dp=2", "--batch", "64"), "Missing option '--cluster'"),
        ((*PREDICT, "dp=8", "--batch", "4"), "smaller than dp = 8"),
        ((*PREDICT, "dp=3", "--batch", "64"), "not a multiple of dp"),
        ((*PREDICT, "dp=12", "--batch", "48"), "12 GPUs do not fill nodes of 8"),
        ((*PREDICT, "dp=12", "--batch", "48", "--gpus", "16"), "12 GPUs do not fill nodes of 8"),
        ((*PREDICT, "dpp=3", "--batch", "64"), "did you mean 'dp'"),
        ((*PREDICT, "dp=2"), "the plan needs a batch"),
        (SWEEP, "Missing option '--vary'"),
        ((*SWEEP, "--vary", "bandwith=1GB/s"), "unknown quantity to vary 'bandwith': did you mean"),
        ((*SWEEP, "--vary", "inter_node_bandwidth=900 G"), "unknown unit 'G'"),
        ((*SWEEP, "--vary", "batch"), "it takes QUANTITY=RANGE"),
        ((*SWEEP, "--vary", "batch=0"), "--vary batch: the count '0' is zero"),
        ((*SWEEP, "--vary", "batch=64", "--vary", "batch=32"), "--vary gives batch twice"),
        ((*SWEEP, "--vary", "batch=64", "--batch", "64"), "both varied and fixed"),
        ((*SWEEP, "--cluster", "v100", "--vary", "intra_node_bandwidth=1GB/s"), "no such link"),
        ((*SWEEP, "--plot", "a.png", *VARIED[:4], "--vary", "tp=1,2"), "one or two varied quantities, not 3"),
        ((*SWEEP, "--plot", "a.png", "--vary", "batch=1:99:+1", "--vary", "tp=1:99:+1"), "at most 12 lines"),
        (("models", "vgg"), "unknown network 'vgg': did you mean 'vgg1"),
        (("models", "show", "vgg"), "unknown network 'vgg': did you mean 'vgg1"),
        (("hardware", "show", "v1000"), "did you mean 'v100"),
        (("hardware", "list", "--kind", "device"), "did you mean 'devices'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(answer, args, said):
    code, out, err = answer(*args)
    assert (code, out) == (2, "")
    error = err.splitlines()[-1]
    assert error.startswith("jaxscale: error: ")
    assert said in error


def test_messages_per_layer():
    assert Messages().convert("per_layer", None, None) == "per-layer"
    with pytest.raises(InputError, match="at most"):
        Messages().convert("20000", None, None)


def test_progress_is_silent_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("jaxscale.cli.progress.PROGRESS_AFTER", 0.0)
    with Progress() as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Progress() as progress:
        progress(1, 1000)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "judging 1,000 candidates" in captured.err


def test_help_of_a_subcommand_loads_no_jax():
    for name in ("optimize", "predict", "sweep", "models", "hardware"):
        script = (
            f"import sys; from jaxscale.cli.main import run; run(['{name}', '--help'])\n"
            "sys.exit('jax' in sys.modules)"
        )
        finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert finished.returncode == 0, name
        assert "--" in finished.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("optimize", "resnet5"),
        ("optimize", "--cluster", "dgx1-v100"),
        ("predict", "lenet-5", "--cluster", "dgx-1-v100", "--network", "hdrr", "--plan", "dp=1"),
        ("sweep", "resnet5", "--vary", "batch=64"),
    ],
)
def test_a_name_that_nobody_knows_is_refused_before_jax_is_loaded(words):
    script = (
        f"import sys; from jaxscale.cli.main import run; code = run({words})\n"
        "sys.exit('jax' if 'jax' in sys.modules else code)"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert finished.returncode == 2
    assert "did you mean" in finished.stderr


def test_a_sweep_notes_the_format_and_names_the_peak(answer):
    """Sweeps of a V100 in BF16 run at the FP32 rate, and a peak that is varied is the one of FP32."""
    given = ("--cluster", "v100", "--precision", "bf16", "--batch", "8", "--messages", "1")
    code, out, err = answer("sweep", "lenet-5", *given, "--vary", "peak_flops=10TFLOP/s")
    assert code == 0
    assert err == (
        "jaxscale: note: v100 has no matrix rate for bf16 in the hardware database, so matrix kernels run at"
        " its fp32 rate\n"
    )
    assert "FP32 peak flops" in out


def test_a_sweep_compares_with_the_best_of_all_its_rows_also_those_not_shown(answer, monkeypatch):
    monkeypatch.setattr("jaxscale.cli.sweep.ROWS_SHOWN", 1)
    setting = ("--cluster", "dgx-1-v100", "--messages", "1")
    code, out, err = answer("sweep", "lenet-5", *setting, "--vary", "batch=8,4096")
    assert code == 0, err
    [row] = [line for line in out.splitlines() if line.split()[:1] == ["8"]]
    assert row.split()[-1].startswith("+")


@pytest.mark.parametrize("words", [("optimize", ""), ("predict", "lenet-5", *SMALL, "--plan", "")])
def test_an_empty_name_is_no_answer(answer, words):
    assert answer(*words)[0] == 2
