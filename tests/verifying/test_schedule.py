"""The order of a run: who is examined in which thread, what is begun ahead, and what is in memory at once."""

from __future__ import annotations

import dataclasses
import threading
import weakref

import pytest

from xref.verifying import schedule
from xref.verifying.schedule import Step, run_steps


@dataclasses.dataclass(frozen=True)
class Worker:
    """Somebody of whom nothing is asked but whether two threads may call it."""

    name: str
    device: str = "cpu"
    concurrent: bool = False

    @property
    def where(self):
        return self.name, self.device


TORCH, JAX = Worker("torch"), Worker("jax", concurrent=True)
FOUR = [dataclasses.replace(worker, device=device) for worker in (JAX, TORCH) for device in ("cpu", "cuda")]


class Inputs:
    """What a step prepares: an object that can be watched, and that is part of a cycle as JAX's arrays are."""

    def __init__(self):
        self.itself = self


def nothing(*args):
    return set()


def test_goldens_are_examined_once_each_and_their_outputs_are_in_order():
    told, finished = [], []

    def finish(inputs, outputs):
        finished.append((inputs, outputs))
        return {f"line of {inputs}"}

    made = [
        Step(f"step {n}", FOUR, lambda n=n: n, lambda inputs, worker: (inputs, *worker.where), finish) for n in range(3)
    ]
    assert run_steps(made, lambda *step: told.append(step)) == {"line of 0", "line of 1", "line of 2"}
    assert finished == [(n, [(n, *worker.where) for worker in FOUR]) for n in range(3)]
    assert told == [("step 0", 0, 3), ("step 1", 1, 3), ("step 2", 2, 3)]


def test_a_framework_that_is_not_concurrent_is_examined_in_the_callers_thread_one_device_after_another():
    ran = []

    def examine(inputs, worker):
        ran.append((inputs, *worker.where, threading.current_thread() is threading.main_thread()))

    run_steps([Step(str(n), FOUR, lambda n=n: n, examine, nothing) for n in range(2)], None)
    of_torch = [each for each in ran if each[1] == "torch"]
    assert of_torch == [(n, "torch", device, True) for n in range(2) for device in ("cpu", "cuda")]
    assert {each[3] for each in ran if each[1] == "jax"} == {False}


def test_frameworks_are_examined_side_by_side():
    met = threading.Barrier(2, timeout=30)
    run_steps([Step("step", [TORCH, JAX], dict, lambda inputs, worker: met.wait(), nothing, large="table")], None)


def test_a_concurrent_framework_is_ahead_of_the_step_whose_turn_it_is():
    done = threading.Event()

    def examine(inputs, worker):
        if inputs == "second":
            done.set()
        else:
            assert worker is JAX or done.wait(timeout=30)

    both = [TORCH, JAX]
    run_steps([Step(name, both, lambda name=name: name, examine, nothing) for name in ("first", "second")], None)
    assert done.is_set()


@pytest.mark.parametrize("place", ["prepare", "examine jax", "examine torch", "finish"])
def test_an_error_of_the_engine_is_not_lost(place):
    def fail(here, result=None):
        if here == place:
            raise ZeroDivisionError
        return result

    step = Step(
        "step",
        [TORCH, JAX],
        lambda: fail("prepare"),
        lambda inputs, worker: fail(f"examine {worker.name}"),
        lambda inputs, outputs: fail("finish", set()),
    )
    with pytest.raises(ZeroDivisionError):
        run_steps([step], None)


@pytest.mark.parametrize("worker", [TORCH, JAX], ids=lambda worker: worker.name)
def test_the_inputs_of_a_large_step_are_gone_when_the_next_are_made(worker):
    made, alive = [], []

    def prepare():
        alive.append([watch() is not None for watch in made])
        inputs = Inputs()
        made.append(weakref.ref(inputs))
        return inputs

    run_steps([Step(f"step {n}", [worker], prepare, nothing, nothing, large=str(n)) for n in range(3)], None)
    assert alive == [[], [False], [False, False]]


def test_a_large_step_that_follows_a_small_one_is_begun_while_that_runs():
    made = threading.Event()
    small = Step("small", [], dict, nothing, lambda inputs, outputs: {f"made: {made.wait(timeout=30)}"})
    large = Step("large", [], made.set, nothing, nothing, large="table")
    assert run_steps([small, large], None) == {"made: True"}


def test_as_many_steps_are_begun_ahead_as_there_are_threads_for(monkeypatch):
    monkeypatch.setattr(schedule, "_AT_ONCE", 1)
    monkeypatch.setattr(schedule, "_AHEAD", 3)
    made, ran = [threading.Event() for _ in range(6)], []

    def finish(number):
        ahead, others = made[number + 1 : number + 4], made[number + 4 :]
        ran.append((all(event.wait(timeout=30) for event in ahead), any(event.is_set() for event in others)))
        return set()

    run_steps([Step(str(n), [], made[n].set, nothing, lambda *_, n=n: finish(n)) for n in range(6)], None)
    assert ran == [(True, False)] * 6


def test_steps_of_one_large_table_are_begun_ahead_and_those_of_others_are_not(monkeypatch):
    monkeypatch.setattr(schedule, "_AT_ONCE", 1)
    monkeypatch.setattr(schedule, "_AHEAD", 2)
    tables = {"a1": "a", "a2": "a", "a3": "a", "b": "b", "small": ""}
    expected = {"a1": ["a2", "a3"], "a2": ["a3"], "a3": [], "b": [], "small": []}
    made = {name: threading.Event() for name in tables}
    ran = []

    def finish(name):
        assert all(made[each].wait(timeout=30) for each in expected[name])
        following = list(tables)[list(tables).index(name) + 1 :]
        ran.append((name, [each for each in following if made[each].is_set()]))
        return set()

    run_steps(
        [Step(name, [], made[name].set, nothing, lambda *_, name=name: finish(name), tables[name]) for name in tables],
        None,
    )
    assert ran == list(expected.items())
