"""The kernels in examples/: judged, interpreted, compiled or read, as far as that needs no accelerator."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from support.helpers import NUMPY_DTYPES, assert_same_bits, load, run_golden
from support.tpus import needs_tpu_compiler, report_for_tpus

import xref as package
from xref import bits
from xref.bits import FORMATS
from xref.engine.outcomes import Outcome
from xref.inputs import make_ids, make_table
from xref.targets import load_target

EXAMPLES = Path(__file__).parents[1] / "examples"
PALLAS = EXAMPLES / "pallas_embedding.py"
TORCH = {"triton": "triton_embedding.py:TritonEmbedding", "cuda": "cuda_embedding.py:CudaEmbedding"}
NOT_RUN = {"EMB-2", "EMB-7/settings", "EMB-7/mode", "EMB-10/settings", "EMB-12/strided"}
# Rows, columns and tokens. On a TPU: parts of tiles; the least; whole tiles; and more columns than a program takes.
TILES = ((37, 33, 20), (1, 1, 1), (64, 128, 32), (5, 4100, 9))


@pytest.fixture(scope="module")
def pallas():
    """Return a function that returns what the Pallas example has under a name."""
    return lambda name: load_target(f"{PALLAS}:{name}", "test")


@pytest.fixture(scope="module")
def as_on_tpus():
    """Return what lets a kernel be interpreted with a TPU's memories, semaphores and DMAs."""
    from jax.experimental.pallas import tpu

    return tpu.InterpretParams()


@pytest.mark.jax
def test_the_pallas_example_passes_on_a_cpu(pallas):
    report = package.judge(
        pallas("PallasEmbedding"), framework="jax", tier="smoke", dtype=("bfloat16", "float8_e5m2"), name="it"
    )
    assert report.ok, report.statement
    assert {each.check for each in report.verdicts if each.outcome is Outcome.SKIP} == NOT_RUN
    assert report.elements > 10**6


@pytest.mark.jax
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("sizes", TILES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_the_tpu_kernel_gathers_as_the_golden(pallas, as_on_tpus, dtype, sizes):
    vocab, hidden, tokens = sizes
    table = make_table("hashed", vocab, hidden, FORMATS[dtype])
    ids = make_ids("zipf_ends", (tokens,), vocab, "int32")
    # The table as integers: of a float's, the interpreter quiets NaNs where it pads tiles.
    out = np.asarray(pallas("gather_tpu")(ids, table, interpret=as_on_tpus))
    assert_same_bits(out, run_golden(load("jax"), "forward", ids, table, dtype))


@pytest.mark.jax
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2"])
def test_the_tpu_kernel_gives_nan_for_bad_ids_and_rows_beside_them(pallas, as_on_tpus, dtype):
    table = make_table("gaussian", 37, 5, FORMATS[dtype])
    ids = np.array([0, 37, 36, -1, 2**31 - 1, -(2**31), 35], np.int32)
    out = np.asarray(pallas("gather_tpu")(ids, table, interpret=as_on_tpus))
    bad = (ids < 0) | (ids >= 37)
    assert bits.is_nan(out[bad], FORMATS[dtype]).all()
    assert_same_bits(out[~bad], table[ids[~bad]])


@pytest.mark.jax
@pytest.mark.parametrize("kernel", ["sums_tpu", "sums_gpu"])
def test_runs_are_added_in_order_by_both_kernels(pallas, as_on_tpus, kernel):
    ends = np.array([1, 4, 5, 12, 29])
    begin = np.full(29, 29, np.int32)
    begin[ends - 1] = [0, *ends[:-1]]
    rows = bits.from_bits(make_table("gaussian", 29, 33, FORMATS["float32"]), "float32")
    rows = np.ldexp(rows, 5 * np.arange(29, dtype=np.int32)[:, None] % 24)
    sums = np.asarray(pallas(kernel)(begin, rows, interpret=as_on_tpus if kernel == "sums_tpu" else True))
    expected = [np.add.accumulate(run, axis=0)[-1] for run in np.split(rows, ends[:-1])]
    assert_same_bits(bits.as_bits(sums[ends - 1]), bits.as_bits(np.array(expected)))
    backward = [np.add.accumulate(run[::-1], axis=0)[-1] for run in np.split(rows, ends[:-1])]
    assert (np.array(backward) != np.array(expected)).any()  # so the order can be told from others


@pytest.mark.jax
@needs_tpu_compiler
def test_the_pallas_example_is_compiled_for_every_tpu_without_a_copy_of_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, report = report_for_tpus(f"{PALLAS}:PallasEmbedding", "--topology", "all")
    assert code == 1  # what is inside a kernel is unknown to the reading of a program, and so not proven
    found = {(each["where"].partition(":")[0], each["dtype"]) for each in report["programs"]}
    assert found == {(tpu, dtype) for tpu in ("v4", "v5e", "v5p", "v6e", "tpu7x") for dtype in ("bfloat16", "float32")}
    for each in report["programs"]:
        element = {"bfloat16": "bf16", "float32": "f32"}[each["dtype"]]
        assert (each["problem"], each["copies"], each["growth"]) == ("", "not proven", 0), each
        assert each["reasons"] == [f"custom-call tpu_custom_call of {element}"]
        assert each["temporaries"] < 2**16
        assert each["output"] == 8192 * 4096 * NUMPY_DTYPES[each["dtype"]].itemsize


@pytest.mark.jax
@needs_tpu_compiler
def test_the_gradient_of_the_pallas_example_is_compiled_for_a_tpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ("--tokens", 64, "--dtype", "bfloat16")  # XLA takes longer to compile a sort of many
    code, report = report_for_tpus(f"{PALLAS}:PallasEmbedding", "--topology", "v5e:2x2", "--verb", "gradient", *few)
    [program] = report["programs"]
    assert (code, program["problem"], program["ok"]) == (0, "", True)
    assert program["growth"] < 8  # bytes for each row of the table, of 8192


@pytest.mark.jax
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_the_gpu_kernel_is_lowered_for_cuda(pallas, dtype):
    import jax

    ids, table = jax.ShapeDtypeStruct((20,), "int32"), jax.ShapeDtypeStruct((37, 33), dtype)
    traced = jax.jit(pallas("PallasEmbedding")().forward).trace(ids, table)
    try:
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    except RuntimeError as error:
        if "No supported GPU devices found" not in str(error):
            raise
        pytest.skip(f"JAX {jax.__version__} lowers Triton only where there is a GPU")
    assert "__gpu$xla.gpu.triton" in text
    assert "tpu_custom_call" not in text


@pytest.mark.parametrize("name", TORCH)
def test_a_torch_example_has_what_a_candidate_needs(name):
    file, _, kernel = TORCH[name].partition(":")
    [found] = [node for node in ast.parse((EXAMPLES / file).read_text()).body if getattr(node, "name", None) == kernel]
    verbs = {
        node.name: [each.arg for each in node.args.args] for node in found.body if isinstance(node, ast.FunctionDef)
    }
    assert verbs == {"forward": ["self", "token_ids", "weight"]}


@pytest.mark.torch
@pytest.mark.parametrize("name", TORCH)
def test_a_torch_example_is_loaded_and_made_without_arguments(name):
    import torch

    if name == "triton" and importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: it comes with PyTorch for CUDA")
    kernel = load_target(f"{EXAMPLES / TORCH[name].partition(':')[0]}:{TORCH[name].partition(':')[2]}", "test")()
    if not torch.cuda.is_available():
        pytest.skip("it is loaded, and not run: PyTorch has no CUDA device here")
    table = torch.arange(12.0, device="cuda").reshape(4, 3)
    assert kernel.forward(torch.tensor([3, 0], device="cuda"), table).tolist() == [[9, 10, 11], [0, 1, 2]]
