"""What `xref bench` measures: turns, ratios, clocks and records. Clocks are fakes where a time is asserted."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from support.bench_records import MEASURED, figure_of, quick, report_of  # noqa: F401  (quick makes laps short)
from support.helpers import raises

from xref import errors, operators
from xref.benching import bench as benching
from xref.benching import plot, report
from xref.benching.bench import Options
from xref.benching.turns import Runner, take_turns
from xref.engine import frameworks
from xref.engine.candidate import candidate_of
from xref.engine.timing import Contender, Shape
from xref.operators.embedding import contenders

ROOT = Path(__file__).parents[2]
OPERATOR = operators.find("embedding")
EACH = [pytest.param("torch", marks=pytest.mark.torch), pytest.param("jax", marks=pytest.mark.jax)]
GOLDENS = "forward, forward, validate=False, forward_fp32"
SMALL = {"vocab": 50, "hidden": 8, "tokens": (12,), "rounds": 4, "dtype": ("bfloat16",)}
pytestmark = pytest.mark.usefixtures("quick")


def bench(candidates=(), **options):
    return benching.bench(OPERATOR, Options(**options), candidates)


def candidate(target, framework, name):
    verbs, trial = OPERATOR.verbs, OPERATOR.trial()
    return candidate_of(target, verbs=verbs, trial=trial, framework=framework, device="cpu", name=name)


class FakeClock:
    """Notes who has a lap; the laps of the n-th contender take n + 1 seconds, and the first one a hundred more."""

    NAME = "host"

    def __init__(self, *_):
        self.order = []
        self.repeats = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def lap(self, key, call, repeats):
        self.order.append(key)
        call()

    def seconds(self):
        laps = {}
        for key in self.order:
            place = list(dict.fromkeys(self.order)).index(key)
            laps.setdefault(key, []).append(place + 1.0 + (0.0 if key in laps else 100.0))
        return laps


def runner(name, call=lambda: None):
    return Runner(Contender(name=name, kind="golden", moved=1, result=1, prepare=lambda inputs: call), call)


# Turns and ratios


def test_everybody_has_a_turn_in_each_round_and_one_round_more_warms_up():
    clock = FakeClock()
    take_turns([runner("a"), runner("b"), runner("c")], 2, clock)
    assert clock.order == ["golden a", "golden b", "golden c"] * 3


def test_who_raises_is_out_and_the_others_go_on():
    calls = itertools.count()

    def fails_the_second_time():
        if next(calls) == 1:
            raise RuntimeError("worn out")

    clock, failing = FakeClock(), runner("b", fails_the_second_time)
    take_turns([runner("a"), failing, runner("c")], 2, clock)
    assert [key.removeprefix("golden ") for key in clock.order] == ["a", "b", "c", "a", "b", "c", "a", "c"]
    assert (failing.problem, failing.call) == ("RuntimeError: worn out", None)


@pytest.mark.torch
def test_a_figure_is_the_median_of_the_rounds_beside_copy_and_native(monkeypatch):
    monkeypatch.setattr(benching, "HostClock", FakeClock)
    found = bench(framework=("torch",), direction=("forward",), **SMALL)
    by_name = {figure.contender: figure for figure in found.figures}
    assert list(by_name) == ["copy", "F.embedding", "forward", "forward, validate=False", "forward_fp32"]
    assert [figure.seconds for figure in found.figures] == [1, 2, 3, 4, 5]
    assert all(figure.quartiles == (figure.seconds, figure.seconds) for figure in found.figures)
    assert all(figure.host_seconds == figure.seconds for figure in found.figures)
    rows, ids, widened = 12 * 8 * 2, 12 * 8, 12 * 8 * 4
    assert [figure.moved for figure in found.figures] == [8192, *[2 * rows + ids] * 3, rows + widened + ids]
    assert by_name["copy"].of_copy == 1
    assert by_name["forward"].of_copy == pytest.approx((2 * rows + ids) / 3 / 8192)
    assert [figure.of_native for figure in found.figures] == [0, 1, 1.5, 2, 2.5]


def test_a_spread_is_that_of_the_quartiles():
    figure = figure_of()
    benching._fill(figure, [100.0, 5.0, 1.0, 2.0, 4.0, 3.0], ("", []))
    assert (figure.seconds, figure.quartiles, figure.clock) == (3.0, (2.0, 4.0), "host")
    benching._fill(figure, [100.0, 5.0], ("", []))
    assert (figure.seconds, figure.quartiles) == (5.0, (5.0, 5.0))


def test_without_a_copy_or_a_native_there_is_no_ratio():
    figure = figure_of(seconds=1.0, moved=8)
    benching._compare([figure])
    assert (figure.of_copy, figure.of_native) == (0, 0)


@pytest.mark.torch
def test_a_gradient_moves_the_dense_result_or_the_rows_that_are_named():
    found = bench(framework=("torch",), direction=("backward",), **SMALL)
    moved = {figure.contender: figure.moved for figure in found.figures}
    shape = Shape("backward", "bfloat16", 50, 8, 12)
    named = len(set(contenders.ids_of(shape, np.dtype("int64")).tolist()))
    read = 12 * 8 + 12 * 8 * 2
    assert moved["F.embedding's backward"] == moved["grad_weight"] == read + 50 * 8 * 2
    assert moved["grad_rows"] == moved["GradAccumulator, 4 parts"] == read + named * (8 + 8 * 2)


def test_ids_are_uniform_and_a_quarter_of_a_backwards_one_id():
    forward = contenders.ids_of(Shape("forward", "bfloat16", 1000, 8, 40000), np.dtype("int32"))
    backward = contenders.ids_of(Shape("backward", "bfloat16", 1000, 8, 40000), np.dtype("int32"))
    assert (forward.dtype, forward.min(), forward.max()) == (np.int32, 0, 999)
    assert np.bincount(forward).max() < 80
    hot = backward == 500
    assert 0.24 < hot.mean() < 0.26
    assert (backward[~hot] == forward[~hot]).all()


def test_rows_are_a_block_over_and_over():
    rows = contenders.rows_of(5000, 3, "float32")
    assert rows.shape == (5000, 3)
    assert (rows[4096:] == rows[:904]).all()
    assert len(np.unique(rows[:4096])) > 1000


# Who takes part


@pytest.mark.parametrize("name", EACH)
def test_all_are_measured_in_both_directions(name):
    found = bench(framework=(name,), memory=True, **SMALL)
    assert found.ok, report.problems(found)
    assert {figure.kind for figure in found.figures} == {"copy", "native", "golden"}
    for figure in found.figures:
        assert figure.clock == "host"
        assert figure.seconds > 0
        assert figure.host_seconds == figure.seconds
        assert figure.calls >= 1
    measured = [figure for figure in found.figures if figure.peak_bytes]
    assert {figure.direction for figure in measured} == {"forward", "backward"}
    noted = [f"{name} GradAccumulator, 4 parts: no peak memory"] if name == "jax" else []
    assert [note.partition(" (")[0] for note in found.notes] == noted
    known = found.machine.frameworks[name]
    assert (known["version"], known["device"]) == (frameworks.load(name).arrays.version(), "CPU")


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float64", "float8_e5m2"])
def test_a_verb_that_a_dtype_has_not_takes_no_part(dtype):
    found = bench(framework=("torch",), direction=("forward",), **{**SMALL, "dtype": (dtype,)})
    assert found.ok
    assert any(figure.contender == "forward_fp32" for figure in found.figures) == (dtype != "float64")


@pytest.mark.parametrize("name", EACH)
def test_a_candidate_is_measured_with_its_own_gradient_or_the_frameworks(name):
    golden = frameworks.load(name).arrays.golden

    class WithBackward:
        forward = staticmethod(golden.forward)
        forward_fp32 = staticmethod(golden.forward_fp32)
        backward = staticmethod(golden.grad_weight)

    candidates = [
        candidate(target, name, called) for called, target in (("own", WithBackward), ("plain", golden.forward))
    ]
    found = bench(candidates, framework=(name,), **SMALL)
    assert found.ok, report.problems(found)
    found = [figure.contender for figure in found.figures if figure.kind == "candidate"]
    assert found == ["own", "own, forward_fp32", "plain", "own, backward", "plain, backward"]


@pytest.mark.torch
def test_a_kernel_of_a_goldens_name_has_its_own_figure(monkeypatch):
    monkeypatch.setattr(benching, "HostClock", FakeClock)
    golden = frameworks.load("torch").arrays.golden
    found = bench(
        [candidate(golden.forward, "torch", "forward")], framework=("torch",), direction=("forward",), **SMALL
    )
    named = [(figure.kind, figure.seconds) for figure in found.figures if figure.contender == "forward"]
    assert named == [("golden", 3), ("candidate", 6)]


@pytest.mark.torch
def test_who_cannot_be_measured_is_an_error_and_the_others_are_measured():
    def embedding(token_ids, weight):
        raise ValueError("not [today]")

    found = bench([candidate(embedding, "torch", "lazy")], framework=("torch",), **SMALL)
    assert not found.ok
    assert report.problems(found) == [
        "torch lazy, forward bfloat16, tokens 12: ValueError: not [today]",
        "torch lazy, backward, backward bfloat16, tokens 12: ValueError: not [today]",
    ]
    assert all(figure.seconds > 0 for figure in found.figures if figure.kind != "candidate")


@pytest.mark.torch
def test_inputs_that_do_not_fit_are_an_error_of_everybody(monkeypatch):
    def put(array, dtype, device):
        raise MemoryError("out of it")

    monkeypatch.setattr(frameworks.load("torch").arrays, "put", put)
    found = bench(framework=("torch",), direction=("forward",), **SMALL)
    assert [figure.problem for figure in found.figures] == ["MemoryError: out of it"] * 5


def test_a_framework_that_takes_no_part_is_told(monkeypatch):
    def fake(**kinds):
        def load(name):
            return SimpleNamespace(name=name, arrays=SimpleNamespace(devices=lambda: kinds[name]))

        return load

    monkeypatch.setattr(frameworks, "installed", lambda name: name == "torch")
    monkeypatch.setattr(frameworks, "load", fake(torch=("cpu",)))
    having, notes = benching.chosen((), "cpu")
    assert [each.name for each in having] == ["torch"]
    assert notes == ["jax takes no part: it is not installed"]
    monkeypatch.setattr(frameworks, "installed", lambda name: True)
    monkeypatch.setattr(frameworks, "load", fake(torch=("cpu", "cuda"), jax=("cpu",)))
    having, notes = benching.chosen((), "cuda")
    assert [each.name for each in having] == ["torch"]
    assert notes == ["jax takes no part: it has cpu here"]
    with raises(
        errors.UsageError,
        "--device: got cuda, expected a device that is here (torch has cpu, cuda; jax has cpu)",
    ):
        benching.chosen(("torch", "jax"), "cuda")
    monkeypatch.setattr(frameworks, "installed", lambda name: False)
    with raises(errors.MissingFrameworkError, "torch: got not installed, expected it to be: pip install 'xref[torch]'"):
        benching.chosen((), "cpu")


# Clocks


class DeviceClock(FakeClock):
    NAME = "events"

    def seconds(self):
        return {key: [each / 10 for each in laps] for key, laps in super().seconds().items()}


class Broken(DeviceClock):
    def __exit__(self, *error):
        raise ValueError("saw nothing")


class Blind(DeviceClock):
    """It sees nothing of one of them."""

    def seconds(self):
        return {key: laps for key, laps in super().seconds().items() if not key.endswith("validate=False")}


class Stopped(DeviceClock):
    def seconds(self):
        return {key: [0.0] * len(laps) for key, laps in super().seconds().items()}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("clock", "name", "notes"),
    [
        (DeviceClock, "events", []),
        (Broken, "host", ["torch on cpu: no events (ValueError: saw nothing)"]),
        (Blind, "host", ["torch on cpu: no events (it saw nothing of forward, validate=False)"]),
        (Stopped, "host", ["torch on cpu: no events (it saw nothing of copy, F.embedding, " + GOLDENS + ")"]),
    ],
    ids=["fine", "broken", "blind", "stopped"],
)  # fmt: skip
def test_the_devices_own_clock_decides_if_it_saw_everybody(clock, name, notes, monkeypatch):
    from xref.torch_ops import timing

    monkeypatch.setattr(benching, "HostClock", FakeClock)
    monkeypatch.setattr(timing, "device_clock", lambda device: clock())
    found = bench(framework=("torch",), direction=("forward",), **SMALL)
    assert {figure.clock for figure in found.figures} == {name}
    assert [figure.host_seconds for figure in found.figures] == [1, 2, 3, 4, 5]
    share = 0.1 if name == "events" else 1
    assert [figure.seconds for figure in found.figures] == [pytest.approx(share * each) for each in range(1, 6)]
    assert found.notes == notes


@pytest.mark.torch
def test_a_cpu_has_no_clock_of_its_own_and_a_gpu_has_events(monkeypatch):
    import torch

    from xref.torch_ops import timing

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            said.append("event")

        def elapsed_time(self, other):
            return 8.0

    said = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("wait"))
    assert timing.device_clock("cpu") is None
    with timing.device_clock("cuda") as clock:
        clock.lap("a", lambda: said.append(torch.is_grad_enabled()), 2)
    assert said == ["wait", "event", False, False, "event", "wait"]
    assert clock.seconds() == {"a": [0.004]}


@pytest.mark.jax
def test_jax_reads_what_ran_between_the_marks_of_a_profile(monkeypatch):
    import jax

    from xref.jax_ops import timing

    assert timing.device_clock("cpu") is None
    # A CPU's operations stand in the host's plane, in lines of their threads.
    monkeypatch.setattr(timing, "_LINES", {"/host:CPU": "tf_"})
    table = jax.numpy.ones((64, 64))
    product = jax.jit(lambda: table @ table)
    product()
    with timing.Profile("cpu") as clock:
        for key in ("a", "b", "a"):
            clock.lap(key, product, 3)
    seconds = clock.seconds()
    assert {key: len(laps) for key, laps in seconds.items()} == {"a": 2, "b": 1}
    assert all(0 < each < 60 for laps in seconds.values() for each in laps)


@pytest.mark.jax
def test_a_gpus_streams_and_a_tpus_operations_are_read_and_nothing_that_sums_them_up():
    from xref.jax_ops import timing

    def plane(name, **lines):
        events = {line: [SimpleNamespace(start_ns=start, duration_ns=5.0)] for line, start in lines.items()}
        return SimpleNamespace(
            name=name,
            lines=[SimpleNamespace(name=line.replace("_", " "), events=all_) for line, all_ in events.items()],
        )

    planes = [
        plane("/device:GPU:0", Stream_13=10.0, XLA_Ops=20.0, XLA_Modules=30.0),
        plane("/device:TPU:0", XLA_Ops=40.0, Steps=50.0),
        plane("/host:CPU", Stream=60.0),
    ]
    assert list(timing._operations(planes)) == [(10.0, 15.0), (40.0, 45.0)]


@pytest.mark.jax
def test_a_profile_that_shows_no_device_is_an_error():
    from xref.jax_ops import timing

    with (
        pytest.raises(ValueError, match="the profile shows 0 ns of the device's time within the laps and 0 without"),
        timing.Profile("cpu") as clock,
    ):
        clock.lap("a", lambda: None, 1)


@pytest.mark.jax
def test_overlapping_operations_count_once_and_belong_to_the_lap_of_their_middle():
    from xref.jax_ops.timing import busy_seconds

    laps = [(0, 100), (200, 300)]
    operations = [(10, 30), (20, 40), (25, 28), (50, 60), (195, 215), (290, 302)]
    assert busy_seconds(laps, operations) == [pytest.approx(40e-9), pytest.approx(32e-9)]
    assert busy_seconds(laps, [(10, 20)]) == [pytest.approx(10e-9), 0]


@pytest.mark.jax
def test_clocks_that_do_not_fit_together_are_an_error():
    from xref.jax_ops.timing import busy_seconds

    with raises(ValueError, "the profile shows 50 ns of the device's time within the laps and 10 without"):
        busy_seconds([(0, 100)], [(10, 60), (140, 150)])
    assert busy_seconds([(0, 1000)], [(0, 900), (1010, 1011)]) == [pytest.approx(900e-9)]


# Records


def test_a_record_is_read_as_it_was_written(tmp_path):
    found = report_of(figure_of(**MEASURED), figure_of(problem="RuntimeError: no"))
    (tmp_path / "r.json").write_text(found.to_json())
    assert report.read_report(tmp_path / "r.json") == found
    assert '"ok": false' in found.to_json()


def test_nothing_measured_is_not_ok():
    assert not report_of().ok
    assert report_of(figure_of()).ok


def test_what_failed_alike_is_one_line():
    figures = [figure_of(tokens=tokens, problem="RuntimeError: no") for tokens in (1, 8)]
    assert report.problems(report_of(*figures)) == [
        "torch golden forward, forward bfloat16, tokens 1, 8: RuntimeError: no"
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.000123456, "0.000123"), (0.1, "0.100"), (1, "1.00"), (9.996, "10.0"),
     (99.96, "100"), (123.4, "123"), (41180, "41200")],
    ids=str,
)  # fmt: skip
def test_a_number_has_three_digits_and_no_exponent(value, text):
    assert report.digits(value) == text


def test_a_ratio_has_two_decimals_and_is_never_a_zero_that_it_is_not():
    assert [report.ratio(value) for value in (0, 0.0049, 0.005, 1, 63.481)] == [
        "",
        "<0.01",
        "0.01",
        "1.00",
        "63.48",
    ]


def test_the_threads_of_a_cpu_are_told():
    found = report_of(figure_of(**MEASURED))
    found.machine.frameworks["torch"]["threads"] = "2"
    assert "torch 2.0 on Card (threads: 2); 2 cores of Chip" in report.statement(found)
    assert "torch 2.0 on Card; 2 cores" in report.statement(msgspec.structs.replace(found, device="cuda"))


def test_the_driver_is_what_nvidias_tool_tells(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *args, **how: SimpleNamespace(stdout="580.1\n580.1\n"))
    assert report.machine([], "cuda").driver == "580.1"
    assert report.machine([], "cpu").driver == ""

    def absent(*args, **how):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", absent)
    assert report.machine([], "cuda").driver == ""


@pytest.mark.parametrize(("suffix", "begin"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_a_plot_is_the_same_file_for_the_same_report(suffix, begin):
    figures = [
        figure_of(framework=framework, kind=kind, contender=name, tokens=tokens, **MEASURED)
        for framework in ("torch", "jax")
        for kind, name in (("copy", "copy"), ("native", "take"), ("golden", "forward"), ("candidate", "mine"))
        for tokens in (1, 8)
    ]
    drawn = plot.draw(report_of(*figures, figure_of(problem="no")), suffix)
    assert drawn.startswith(begin)
    assert drawn == plot.draw(report_of(*figures), suffix)


def test_nothing_measured_is_no_plot():
    with raises(errors.UsageError, "--plot: got no figure, expected one that could be measured"):
        plot.draw(report_of(figure_of(problem="no")), ".svg")


def test_a_missing_matplotlib_comes_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises(errors.UsageError, "matplotlib: got not installed, expected it to be: pip install 'xref[plot]'"):
        plot.check_plot(Path("a.svg"))


# The page


def load_performance():
    spec = importlib.util.spec_from_file_location("performance", ROOT / "benchmarks" / "performance.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_is_made_of_the_records():
    performance = load_performance()
    records = {path.stem: report.read_report(path) for path in performance.RESULTS.glob("*.json")}
    assert records
    assert performance.page(dict(sorted(records.items()))) == performance.PAGE.read_text(encoding="utf-8")
    for name in records:
        assert performance.PAGE.with_name(f"performance-{name}.svg").is_file()


@pytest.mark.torch
def test_what_is_named_twice_is_measured_once():
    found = bench(
        framework=("torch", "torch"), dtype=("float32", "float32"), direction=("forward", "forward"), tokens=(4, 4),
        vocab=5, hidden=4, rounds=2,
    )  # fmt: skip
    assert len(found.figures) == len({figure.who for figure in found.figures})
