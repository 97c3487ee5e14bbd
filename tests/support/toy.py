"""A toy operator for tests of the engine alone: a subject is a Python function of numbers, and 'right' doubles them."""

from __future__ import annotations

import msgspec

from xref.engine.steps import Died, Output, Raised, Replies, Run, Script
from xref.spec import Call, Check, Clause, Exam, Operator, Skip, Tier, Traits

TRAITS = Traits(name="toy", framework="none", version="0", device="cpu", device_name="CPU", verbs=("double",))
EXAM = Exam(traits=TRAITS, tier=Tier.SMOKE, dtypes=("float32",))


class Doubles(Call, frozen=True, kw_only=True, tag="doubles"):
    """Numbers from `first` on, `count` of them in each of `rows`; `odd` is something unusual about them."""

    count: int = 1
    rows: int = 1
    first: int = 0
    odd: str = ""

    def __str__(self):
        return f"{self.rows}x{self.count} from {self.first} {self.odd}".rstrip()

    def script(self, exam):
        return Script(dtype="float32", steps=(Run(name="out", verb="double", arguments=(self,)),))

    def judge(self, script, replies, exam):
        from xref.spec import Seen

        seen, reply = Seen(), replies.of("out")
        if isinstance(reply, Died):
            seen.fail(self.check, f"process: got {reply.how}, expected a result", 1, aborts=True)
        elif isinstance(reply, Raised):
            seen.fail(self.check, f"out: got {reply.line}, expected a result", 1, raised=reply.line)
        elif isinstance(reply, Output):
            message = reply.form[1]
            if message:
                seen.fail(self.check, message, self.count * self.rows)
            else:
                seen.ok(self.check, self.count * self.rows)
                seen.ok("T-3", 1)
        return seen

    def plainer(self):
        if self.odd:
            yield msgspec.structs.replace(self, odd="")
        if self.first:
            yield msgspec.structs.replace(self, first=0)

    def sizes(self):
        return {"tokens": self.count, "rows": self.rows}

    def resized(self, name, size):
        return msgspec.structs.replace(self, **{{"tokens": "count", "rows": "rows"}[name]: size})


class Subject:
    """Performs calls by a function that returns what is wrong with the output, or nothing, raises, or dies."""

    traits = TRAITS

    def __init__(self, wrong, *, elsewhere=False):
        self._wrong, self.made, self.forgot, self.elsewhere = wrong, [], 0, elsewhere

    def perform(self, script):
        [call] = script.steps[0].arguments
        self.made.append(call)
        try:
            reply = Output(form=((), self._wrong(call) or "", "cpu"))
        except MemoryError as error:
            reply = Died(how=str(error), stderr="the last\n words\n")
        except Exception as error:
            reply = Raised(type=type(error).__name__, bases=(), text=str(error), line=repr(error))
        return Replies(script, [reply])

    def forget(self):
        self.forgot += 1


def operator_of(*checks, follow_up=lambda call, seen: ()):
    """Return the operator with these checks and one more, T-3, that every call is judged by."""
    every = Check(id="T-3", judgment="all", text="what every call is judged by")
    return Operator(
        name="toy", version=1, verbs=("double",), clauses=(Clause("T-1", "doubled", "All is doubled."),),
        checks=(*checks, every), faults=(), calls=(Doubles,), goldens={"none": "nowhere"}, native="", trial=dict,
        explain=lambda call, failure, make: (), follow_up=follow_up,
    )  # fmt: skip


def check_of(id, *items, required=True):
    """Return the check that yields these calls and skips; texts stand for skips."""

    def calls(exam):
        for item in items:
            yield Skip(item) if isinstance(item, str) else msgspec.structs.replace(item, check=id)

    return Check(id=id, judgment="all", text=f"what {id} says", required=required, calls=calls)
