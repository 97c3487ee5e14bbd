"""Write the digests of every case into the package: run it when a case is added, and say so under "Changed bits"."""

from __future__ import annotations

import pathlib

import msgspec

from xref.contracts import embedding
from xref.spec import Tier


def main() -> None:
    """Build every case, one at a time, and replace the file of digests when all are done."""
    digests = {}
    for case in embedding.cases(Tier.EXHAUSTIVE):
        ids, table = embedding.build(case)
        digests[case.id] = embedding.digests(case, ids, table, embedding.exact_answers(ids, table, case.dtype))
        print(case.id)  # noqa: T201
    target = pathlib.Path(embedding.__file__).with_name("embedding_digests.json")
    target.write_bytes(msgspec.json.format(msgspec.json.encode(digests), indent=1) + b"\n")


if __name__ == "__main__":
    main()
