"""Write the digests of every case into the package: run it when a case is added, and say so under "Changed bits"."""

from __future__ import annotations

import pathlib

import msgspec

from xref.operators.embedding import answers, cases, gradient_cases
from xref.spec import Tier


def main() -> None:
    """Build every case, one at a time, and replace the file of digests when all are done."""
    digests = {}
    for case in cases.cases(Tier.EXHAUSTIVE):
        digests[case.id] = answers.digests(case.call)
        print(case.id)  # noqa: T201
    for gradient in gradient_cases.cases(Tier.EXHAUSTIVE):
        digests[gradient.id] = gradient_cases.digests(gradient.call)
        print(gradient.id)  # noqa: T201
    target = pathlib.Path(answers.__file__).with_name("digests.json")
    target.write_bytes(msgspec.json.format(msgspec.json.encode(digests), indent=1) + b"\n")


if __name__ == "__main__":
    main()
