"""Which kernel serves: the order, the reasons, and that no backend is passed over in silence."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from support.helpers import FRAMEWORKS as EACH
from support.helpers import forget_modules, load, raises

import xref
from xref import errors, registry
from xref.registry import DEVICES, FRAMEWORKS, REGISTRY, KernelRegistry, Listing, OpBackend, Skipped, get_op

VARIABLE = "XREF_BACKEND_EMBEDDING"


class Kernel:
    def __init__(self, name):
        self.name = name

    def forward(self, token_ids, weight):
        return weight[token_ids]


def backend(name, *, framework="torch", devices=DEVICES, raising=None, giving=None, **fields):
    def load():
        if raising is not None:
            raise raising
        return Kernel(name) if giving is None else giving

    return OpBackend(name, "embedding", framework, devices, load, **fields)


@pytest.fixture(autouse=True)
def no_choice(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def frameworks(monkeypatch):
    """Both frameworks count as installed: what serves here needs none."""
    monkeypatch.setattr(registry, "installed", lambda framework: True)


@pytest.fixture
def without_native(monkeypatch, frameworks):
    """No golden loads, as where a framework's own libraries are broken."""

    def broken(op, framework):
        raise OSError("libcudart.so: cannot open\nmore")

    monkeypatch.setattr(registry, "_native", broken)


def registry_of(*backends):
    made = KernelRegistry(group=None)
    for each in backends:
        made.register(each)
    return made


# The golden


@pytest.mark.parametrize("framework", EACH)
@pytest.mark.parametrize("kind", DEVICES)
def test_the_golden_serves_every_kind_of_device(framework, kind):
    found = KernelRegistry(group=None).resolve("embedding", framework=framework, device=kind)
    assert type(found.kernel) is load(framework).golden.NativeEmbeddingOp
    assert (found.name, found.origin, found.forced_by, found.skipped) == ("native", "xref", "", ())
    assert found.why == f"native of xref: first in priority that serves {framework} on {kind}"


@pytest.mark.parametrize("framework", EACH)
def test_what_get_op_returns_has_both_verbs(framework):
    op, framework = get_op("embedding", framework=framework, device="cpu"), load(framework)
    ids, table = np.array([2, 0]), np.arange(6, dtype=np.uint32).reshape(3, 2)
    for verb in (op.forward, op.forward_fp32):
        out = verb(framework.put(ids, None, "cpu"), framework.put(table, "float32", "cpu"))
        assert framework.bits_of(out).tolist() == [[4, 5], [0, 1]]


def test_importing_the_registry_and_listing_loads_no_framework():
    code = """
        import sys, xref.registry
        xref.registry.KernelRegistry(group=None).backends()
        print(sorted({"torch", "jax", "typer", "rich", "safetensors"} & set(sys.modules)))
        print([name for name in sys.modules if "_ops" in name])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_a_missing_framework_comes_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(registry, "installed", lambda framework: framework != "jax")
    made = registry_of(backend("fast", framework="jax"))
    message = "jax: got not installed, expected it to be: pip install 'xref[jax]' [get_op]"
    with raises(errors.MissingFrameworkError, message):
        made.get_op("embedding", framework="jax", device="cpu")


# Order


def test_higher_priority_first_and_by_name_among_equals(frameworks):
    made = registry_of(backend("b"), backend("a"), backend("first", priority=101), backend("late", priority=-1))
    names = [each.name for each in made.backends() if each.framework == "torch"]
    assert names == ["first", "a", "b", "native", "late"]
    assert made.get_op("embedding", framework="torch", device="tpu").name == "first"


def test_a_place_can_be_given_at_registration(frameworks):
    made = registry_of(backend("a"))
    made.register(backend("b"), priority=1000)
    assert made.resolve("embedding", framework="torch", device="cpu").name == "b"


def test_the_first_that_serves_the_device_is_taken_and_the_others_are_told(frameworks):
    made = registry_of(
        backend("gpu", devices=("cuda", "rocm"), priority=200), backend("tpu", framework="jax"), backend("any")
    )
    found = made.resolve("embedding", framework="torch", device="cpu")
    assert (found.op, found.framework, found.device) == ("embedding", "torch", "cpu")
    assert (found.name, found.origin) == ("any", "this process")
    assert found.skipped == (Skipped("gpu", "this process", "serves cuda, rocm"),)
    assert found.why == (
        "any of this process: first in priority that serves torch on cpu; not gpu of this process (serves cuda, rocm)"
    )
    assert made.resolve("embedding", framework="torch", device="rocm").name == "gpu"
    assert made.resolve("embedding", framework="jax", device="cpu").name == "tpu"


def test_each_call_loads_anew(frameworks):
    made = registry_of(backend("a"))
    one, other = (made.get_op("embedding", framework="torch", device="cpu") for _ in range(2))
    assert one is not other


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("norm", "torch", "cpu"), "op: got 'norm', expected one of embedding"),
        (("embedding", "numpy", "cpu"), "framework: got 'numpy', expected one of torch, jax"),
        (("embedding", "torch", "gpu"), "device: got 'gpu', expected one of cuda, rocm, tpu, cpu"),
    ],
    ids=["op", "framework", "device"],
)
def test_unknown_names_are_refused(asked, message):
    op, framework, device = asked
    for call in ("get_op", "resolve"):
        with raises(errors.UsageError, f"{message} [{call}]"):
            getattr(KernelRegistry(group=None), call)(op, framework=framework, device=device)


def test_another_operator_is_served_as_well(frameworks):
    made = registry_of(OpBackend("fast", "norm", "jax", ("tpu",), lambda: Kernel("fast")))
    assert made.get_op("norm", framework="jax", device="tpu").name == "fast"
    message = "norm: got fast of this process (serves tpu), expected a backend that serves"
    with raises(errors.UsageError, f"{message} jax on cpu [resolve]"):
        made.resolve("norm", framework="jax", device="cpu")
    message = "norm: got no backend, expected a backend that serves torch on cpu [resolve]"
    with raises(errors.UsageError, message):
        made.resolve("norm", framework="torch", device="cpu")


# What cannot be loaded


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (backend("fast", raising=ImportError("no triton\nmore")), "ImportError: no triton"),
        (backend("fast", raising=SystemExit(3)), "SystemExit: 3"),
        (backend("fast", giving=Kernel), "its loader returned the class Kernel, not an object of it"),
        (backend("fast", giving=[1]), "its loader returned an object of type list, without forward"),
    ],
    ids=["import", "exit", "class", "no forward"],
)
def test_what_cannot_be_loaded_is_passed_over_loudly(frameworks, broken, reason):
    made = registry_of(broken, backend("next"))
    for call in ("get_op", "resolve"):
        with pytest.warns(RuntimeWarning) as caught:
            found = getattr(made, call)("embedding", framework="torch", device="cpu")
        assert [str(each.message) for each in caught] == [
            f"backend fast of this process: got {reason}, expected it to load; the next one is tried [{call}]"
        ]
        assert caught[0].filename == __file__
    assert found.name == "next"
    assert found.skipped == (Skipped("fast", "this process", reason),)


def test_the_users_interrupt_goes_through(frameworks):
    made = registry_of(backend("fast", raising=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        made.get_op("embedding", framework="torch", device="cpu")


def test_where_nothing_serves_all_reasons_are_told(without_native):
    made = registry_of(backend("fast", raising=ImportError("no triton")), backend("gpu", devices=("cuda",)))
    told = (
        "fast of this process (ImportError: no triton); gpu of this process (serves cuda);"
        " native of xref (OSError: libcudart.so: cannot open)"
    )
    message = f"embedding: got {told}, expected a backend that serves torch on cpu [get_op]"
    with pytest.warns(RuntimeWarning) as caught, raises(errors.UsageError, message):
        made.get_op("embedding", framework="torch", device="cpu")
    assert len(caught) == 2


# Forced


def test_the_environment_names_the_one_that_serves(frameworks, monkeypatch):
    made = registry_of(backend("a"), backend("b"), backend("b", framework="jax"))
    monkeypatch.setenv(VARIABLE, "b")
    found = made.resolve("embedding", framework="torch", device="cpu")
    assert (found.name, found.forced_by, found.skipped) == ("b", VARIABLE, ())
    assert found.why == f"b of this process: named by {VARIABLE}"
    monkeypatch.setenv(VARIABLE, "")
    assert made.resolve("embedding", framework="torch", device="cpu").name == "a"


@pytest.mark.parametrize(
    ("forced", "got", "expected"),
    [
        ("nobody", "'nobody'", "one that serves torch on cpu: broken, native"),
        ("gpu", "'gpu', which serves torch on cuda, rocm", "one that serves torch on cpu: broken, native"),
        (
            "both",
            "'both', which serves torch on cuda and jax on cpu, tpu",
            "one that serves torch on cpu: broken, native",
        ),
        (
            "broken",
            "'broken' of this process, which cannot be loaded (ImportError: no triton)",
            "a backend that can be",
        ),
    ],
)
def test_a_forced_one_that_cannot_serve_is_an_error_and_nothing_else_serves(
    frameworks, monkeypatch, forced, got, expected
):
    made = registry_of(
        backend("gpu", devices=("cuda", "rocm")),
        backend("both", devices=("cuda",)),
        backend("both", framework="jax", devices=("cpu", "tpu")),
        backend("broken", raising=ImportError("no triton")),
    )
    monkeypatch.setenv(VARIABLE, forced)
    with raises(errors.UsageError, f"{VARIABLE}: got {got}, expected {expected} [get_op]"):
        made.get_op("embedding", framework="torch", device="cpu")


# Registration


def test_the_same_backend_twice_is_one_and_another_of_its_name_is_refused(frameworks):
    mine = backend("a")
    made = registry_of(mine, mine)
    assert [each.name for each in made.backends()].count("a") == 1
    message = "backend: got a second 'a' for embedding in torch, expected another name than that of this process"
    with raises(errors.UsageError, f"{message} [register]"):
        made.register(backend("a"))
    message = "backend: got a second 'native' for embedding in torch, expected another name than that of xref"
    with raises(errors.UsageError, f"{message} [register]"):
        made.register(backend("native"))


def test_what_is_no_backend_is_refused():
    with raises(errors.UsageError, "backend: got dict, expected an OpBackend [register]"):
        KernelRegistry(group=None).register({})


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("name", "", "a name"),
        ("name", 3, "a name"),
        ("op", "my-op", "an operator's name"),
        ("framework", "numpy", "one of torch, jax"),
        ("devices", "cuda", "a tuple out of cuda, rocm, tpu, cpu"),
        ("devices", (), "a tuple out of cuda, rocm, tpu, cpu"),
        ("devices", ("gpu",), "a tuple out of cuda, rocm, tpu, cpu"),
        ("load", "pkg.mod:Op", "a function without arguments"),
        ("priority", True, "an integer"),
        ("priority", 0.5, "an integer"),
    ],
)
def test_a_backend_checks_its_fields(field, value, expected):
    fields = {"name": "a", "op": "embedding", "framework": "torch", "devices": ("cpu",), "load": dict, "priority": 1}
    with raises(errors.UsageError, f"{field}: got {value!r}, expected {expected} [OpBackend]"):
        OpBackend(**fields | {field: value})


def test_registries_share_nothing(frameworks):
    registry_of(backend("mine"))
    assert "mine" not in {each.name for each in KernelRegistry(group=None).backends()}
    assert "mine" not in {each.name for each in REGISTRY.backends()}


def test_all_backends_are_listed_by_operator_framework_and_priority():
    norm = OpBackend("z", "norm", "torch", ("cpu",), dict, 7)
    made = registry_of(norm, backend("j", framework="jax"), backend("t", devices=("rocm",)))
    native = [
        Listing(name="native", origin="xref", op="embedding", framework=name, devices=DEVICES) for name in FRAMEWORKS
    ]
    mine = {"origin": "this process", "op": "embedding", "priority": 100}
    assert made.backends() == (
        Listing(name="t", framework="torch", devices=("rocm",), **mine),
        native[0],
        Listing(name="j", framework="jax", devices=DEVICES, **mine),
        native[1],
        Listing(name="z", origin="this process", op="norm", framework="torch", devices=("cpu",), priority=7),
    )


# Installed packages


@pytest.fixture
def install(tmp_path, monkeypatch, frameworks):
    """Install packages for a test: a module each, and the metadata that pip would write."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(package, code, *points):
        module = package.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(PREAMBLE) + textwrap.dedent(code))
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(f"{name} = {module}{target}\n" for name, target in (point.split("=") for point in points))
        (info / "entry_points.txt").write_text(f"[xref.kernels]\n{lines}")

    yield add
    forget_modules(tmp_path)


PREAMBLE = """
    from xref.registry import OpBackend

    class Kernel:
        def forward(self, token_ids, weight):
            return weight[token_ids]

    def backend(name, framework="torch", **fields):
        return OpBackend(name, "embedding", framework, ("cuda", "cpu"), Kernel, **fields)
"""


def test_a_package_s_kernel_serves_before_the_golden(install):
    install("reg-fast", "BACKEND = backend('fast')", "fast=:BACKEND")
    found = KernelRegistry().resolve("embedding", framework="torch", device="cuda")
    assert (found.name, found.origin, type(found.kernel).__module__) == ("fast", "reg-fast", "reg_fast")
    assert KernelRegistry(group=None).backends() == KernelRegistry(group="no.such.group").backends()


def test_a_package_may_offer_a_list_and_by_a_function_and_ask_for_a_place_behind_the_golden(install):
    install("reg-many", "BACKENDS = [backend('one'), backend('one', 'jax')]", "many=:BACKENDS")
    install("reg-made", "def made():\n    return backend('made', priority=-1)", "made=:made")
    install("reg-none", "def made():\n    return []", "none=:made")
    listed = [(each.name, each.origin, each.framework, each.priority) for each in KernelRegistry().backends()]
    assert listed == [
        ("one", "reg-many", "torch", 100),
        ("native", "xref", "torch", 0),
        ("made", "reg-made", "torch", -1),
        ("one", "reg-many", "jax", 100),
        ("native", "xref", "jax", 0),
    ]


BROKEN = {
    "import": ("raise RuntimeError('no GPU')", ":BACKEND", "RuntimeError: no GPU"),
    "exit": ("raise SystemExit(1)", ":BACKEND", "SystemExit: 1"),
    "no module": ("", "_gone:BACKEND", "ModuleNotFoundError: No module named 'reg_bad_gone'"),
    "no name": ("", ":BACKEND", "AttributeError: module 'reg_bad' has no attribute 'BACKEND'"),
    "wrong type": ("BACKEND = {}", ":BACKEND", "backend: got dict, expected an OpBackend [register]"),
    "wrong field": (
        "BACKEND = OpBackend('x', 'embedding', 'torch', 'cpu', Kernel)",
        ":BACKEND",
        "UsageError: devices: got 'cpu', expected a tuple out of cuda, rocm, tpu, cpu [OpBackend]",
    ),
    "taken name": (
        "BACKEND = backend('native')",
        ":BACKEND",
        "backend: got a second 'native' for embedding in torch, expected another name than that of xref [register]",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_entry_point_that_offers_nothing_is_listed_told_and_cannot_be_forced(install, monkeypatch, case):
    code, target, reason = BROKEN[case]
    install("reg-bad", code, f"bad={target}")
    install("reg-good", "BACKEND = backend('good')", "good=:BACKEND")
    made = KernelRegistry()
    assert made.backends()[-1] == Listing(name="bad", origin="reg-bad", problem=reason)
    for _ in range(2):  # as long as it is broken
        with pytest.warns(RuntimeWarning) as caught:
            found = made.resolve("embedding", framework="torch", device="cpu")
        assert [str(each.message) for each in caught] == [
            f"backend bad of reg-bad: got {reason}, expected it to load; the next one is tried [resolve]"
        ]
        assert (found.name, found.skipped) == ("good", (Skipped("bad", "reg-bad", reason),))
    monkeypatch.setenv(VARIABLE, "bad")
    got = f"'bad', which cannot be loaded ({reason})"
    with raises(
        errors.UsageError, f"{VARIABLE}: got {got}, expected one that serves torch on cpu: good, native [get_op]"
    ):
        made.get_op("embedding", framework="torch", device="cpu")
    monkeypatch.setenv(VARIABLE, "good")  # what was not asked for may be broken
    assert made.resolve("embedding", framework="torch", device="cpu").skipped == ()


def test_one_wrong_backend_of_a_list_leaves_the_others(install):
    install("reg-mixed", "BACKENDS = [3, backend('good')]", "mixed=:BACKENDS")
    made = KernelRegistry()
    assert {each.name: each.problem for each in made.backends()} == {
        "good": "",
        "native": "",
        "mixed": "backend: got int, expected an OpBackend [register]",
    }


def test_of_two_packages_with_one_name_the_first_by_name_has_it(install):
    for package in ("reg-b", "reg-a"):
        install(package, "BACKEND = backend('same')", "same=:BACKEND")
    *_, last = KernelRegistry().backends()
    got = "got a second 'same' for embedding in torch, expected another name than that of reg-a [register]"
    assert last == Listing(name="same", origin="reg-b", problem=f"backend: {got}")


def test_entry_points_are_read_at_first_use_and_once(install):
    made = KernelRegistry()
    install("reg-count", "BACKEND = backend('counted')", "counted=:BACKEND")
    assert "reg_count" not in sys.modules
    made.backends()
    module = sys.modules.pop("reg_count")
    made.resolve("embedding", framework="torch", device="cpu")
    assert "reg_count" not in sys.modules
    assert module.BACKEND.name == "counted"


def test_a_package_may_ask_for_a_kernel_while_it_is_imported(install):
    code = """
        import reg_state
        reg_state.names.append(reg_state.registry.resolve("embedding", framework="torch", device="cpu").name)
        BACKEND = backend('late')
    """
    install("reg-state", "names = []")
    install("reg-asking", code, "late=:BACKEND")
    import reg_state

    reg_state.registry = KernelRegistry()
    reg_state.registry.register(backend("early"))
    assert reg_state.registry.resolve("embedding", framework="torch", device="cpu").name == "early"
    assert reg_state.names == ["early"]


def test_an_interrupt_while_reading_loses_nothing(install):
    install("reg-slow", "import reg_state\nreg_state.step()\nBACKEND = backend('slow')", "slow=:BACKEND")
    install("reg-quick", "BACKEND = backend('quick')", "quick=:BACKEND")
    install("reg-state", "def step():\n    raise KeyboardInterrupt")
    made = KernelRegistry()
    with pytest.raises(KeyboardInterrupt):
        made.backends()
    sys.modules["reg_state"].step = lambda: None
    assert {each.name for each in made.backends()} == {"quick", "slow", "native"}


def test_threads_that_ask_at_once_read_entry_points_once(install):
    install("reg-fast", "def made():\n    return backend('fast')", "fast=:made")
    made, names = KernelRegistry(), []
    start = threading.Barrier(8)

    def ask():
        start.wait()
        names.append(made.resolve("embedding", framework="torch", device="cpu").name)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == ["fast"] * 8
    assert len(made.backends()) == 3


def test_get_op_asks_the_registry_of_the_process(install, tmp_path):
    install("reg-fast", "BACKEND = backend('fast')", "fast=:BACKEND")
    code = """
        import xref.registry
        xref.registry.installed = lambda framework: True
        print(type(xref.registry.get_op("embedding", framework="torch", device="cpu")).__module__)
    """
    path = os.pathsep.join([str(tmp_path), str(Path(xref.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "reg_fast"


def test_a_warning_names_the_line_that_asked_the_process(monkeypatch, frameworks):
    made = registry_of(backend("fast", raising=ImportError("no triton")), backend("next"))
    monkeypatch.setattr(registry, "REGISTRY", made)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert get_op("embedding", framework="torch", device="cpu").name == "next"
    assert [each.filename for each in caught] == [__file__]
