"""A picture of a bench report: bandwidth against tokens, a panel for each direction and dtype."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from xref import errors
from xref.benching.report import COPY, BenchReport, Figure

__all__ = ["SUFFIXES", "check_plot", "draw"]

SUFFIXES = (".svg", ".png")
_COLOURS = {
    "native": ("#333333", "#777777", "#aaaaaa"),
    "golden": ("#0b61a4", "#2a9d8f", "#8e5ea2", "#5fb3ce"),
    "candidate": ("#d1495b", "#edae49", "#b5651d", "#f28482"),
}
_MARKS = 7  # numbers that fit under a panel
_STYLES = {"torch": ("-", "o"), "jax": ("--", "s")}


def check_plot(path: Path) -> None:
    """Raise unless a plot can be drawn into such a file.

    Raises:
        UsageError: a file of another kind, or matplotlib is not installed; the message has the line that installs it.
    """
    if path.suffix not in SUFFIXES:
        expected = f"a file ending in {' or '.join(SUFFIXES)}"
        raise errors.UsageError("--plot", path, expected)
    _matplotlib()


def _matplotlib() -> ModuleType:
    try:
        import matplotlib
        import matplotlib.figure
        import matplotlib.ticker
    except ImportError as error:
        expected = "it to be: pip install 'xref[plot]'"
        raise errors.UsageError("matplotlib", "not installed", expected) from error
    return matplotlib


def draw(report: BenchReport, suffix: str) -> bytes:
    """Return the picture, of the kind that `suffix` names: the same bytes for the same report.

    Raises:
        UsageError: matplotlib is not installed, or nothing could be measured.
    """
    matplotlib = _matplotlib()
    measured = [figure for figure in report.figures if not figure.problem]
    if not measured:
        raise errors.UsageError("--plot", "no figure", "one that could be measured")
    directions = list(dict.fromkeys(figure.direction for figure in measured))
    dtypes = list(dict.fromkeys(figure.dtype for figure in measured))
    tokens = sorted({figure.tokens for figure in measured})
    marks = tokens[:: -(-len(tokens) // _MARKS)]
    with matplotlib.rc_context(
        {"svg.hashsalt": "xref", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    ):
        size = (4.2 * len(dtypes) + 3.0, 3.4 * len(directions) + 0.6)
        picture = matplotlib.figure.Figure(figsize=size, layout="constrained")
        panels = picture.subplots(len(directions), len(dtypes), squeeze=False, sharex=True, sharey="row")
        for row, direction in zip(panels, directions, strict=True):
            shown = [figure for figure in measured if figure.direction == direction]
            for axes, dtype in zip(row, dtypes, strict=True):
                axes.set_title(f"{direction}, {dtype}")
                _panel(axes, [figure for figure in shown if figure.dtype == dtype], _looks(shown))
            row[0].set_ylabel("GB/s moved")
            row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
        for axes in panels[-1]:
            axes.set_xlabel("tokens in a call")
            axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator(marks))
            axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
            axes.xaxis.set_major_formatter("{x:.0f}")
        known = report.machine.frameworks
        where = ", ".join(f"{name} {each['version']}" for name, each in known.items())
        device = " and ".join(dict.fromkeys(each["device"] for each in known.values()))
        device = report.machine.processor if report.device == "cpu" else device
        picture.suptitle(f"{device}: {where}; table [{report.vocab}, {report.hidden}]", fontsize=10)
        file = io.BytesIO()
        metadata = {"Date": None} if suffix == ".svg" else {}
        picture.savefig(file, format=suffix.removeprefix("."), dpi=150, metadata=metadata)
    return file.getvalue()


def _looks(figures: Sequence[Figure]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return how the line of each contender looks: colours tell contenders apart, strokes and marks the frameworks."""
    looks: dict[tuple[str, str, str], dict[str, Any]] = {}
    names: dict[str, list[str]] = {}
    for figure in figures:
        if figure.kind != COPY and figure.who not in looks:
            alike = names.setdefault(figure.kind, [])
            if figure.contender not in alike:
                alike.append(figure.contender)
            colours, (line, mark) = _COLOURS[figure.kind], _STYLES[figure.framework]
            looks[figure.who] = {
                "color": colours[alike.index(figure.contender) % len(colours)],
                "linestyle": line,
                "marker": mark,
                "markersize": 3.5,
                "linewidth": 1.3,
                "label": f"{figure.framework}: {figure.title}".replace("$", r"\$"),  # what stands between two is maths
            }
    return looks


def _panel(axes: Any, figures: Sequence[Figure], looks: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    for framework in dict.fromkeys(figure.framework for figure in figures):
        copies = [each.bandwidth for each in figures if each.framework == framework and each.kind == COPY]
        if copies:
            line, _ = _STYLES[framework]
            axes.axhline(
                statistics.median(copies) / 1e9, color="black", linewidth=1, linestyle=line, label=f"{framework}: copy"
            )
    for who, look in looks.items():
        points = [each for each in figures if each.who == who]
        axes.plot([each.tokens for each in points], [each.bandwidth / 1e9 for each in points], **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(visible=True, which="major", linewidth=0.4, alpha=0.6)
