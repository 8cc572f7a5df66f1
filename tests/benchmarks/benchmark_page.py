"""Benchmarks as a page: run pytest-benchmark, and tabulate what it measured with machine, versions and date."""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpbayes.errors import InputError

KEPT = "<!-- kept -->"
"""From this line on a page is written by hand, and stays; so does what stands above `WRITTEN`."""
WRITTEN = "Written by `dpbayes bench`"
TITLE = "# Benchmarks"
PEERS = ("dp accounting", "opendp", "statsmodels", "scikit learn", "pandas", "mbi", "affine sampler", "gibbs")
"""What a benchmark of somebody else's code has in its name."""

LIBRARIES = ("numpy", "scipy", "polars", "pymc", "pytensor", "nutpie", "opendp", "dp-accounting", "statsmodels",
             "scikit-learn", "mbi")  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One benchmark: its system and name, seconds, and for a scaling what grows."""

    system: str
    group: str
    name: str
    best: float
    median: float
    rounds: int
    axis: str = ""
    size: float = float("nan")


def run_benchmarks(folder: Path, *, only: str = "", echo: Callable[[str], None] = print) -> list[Measured]:
    """Run the benchmarks of a folder of ``test_<system>.py`` files, or of one system, and read what they measured."""
    files = sorted(folder.glob(f"test_{only or '*'}.py"))
    if not files:
        raise InputError(
            f"there are no benchmarks test_{only or '*'}.py in {folder}; run this in a checkout of dpbayes"
        )
    if importlib.util.find_spec("pytest_benchmark") is None:
        raise InputError("benchmarks need pytest-benchmark; install the development group: uv sync")
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as scratch:
        for file in files:
            echo(f"benchmarks: {file.stem.removeprefix('test_')}")
            found += _run(file, Path(scratch) / f"{file.stem}.json")
    return found


def write_benchmarks(measured: Sequence[Measured], path: Path) -> Path:
    """Write a table of benchmarks, a picture of the scalings and one of the peers; what was written by hand stays."""
    former = path.read_text(encoding="utf-8") if path.is_file() else ""
    above = former.partition(WRITTEN)[0] if WRITTEN in former else f"{TITLE}\n\n"
    lines = [above.rstrip(), "", *_machine(), ""]
    if ratios := peer_ratios(measured):
        _plot_peers(ratios, path.with_name(f"{path.stem}_peers.png"))
    scalings = [one for one in measured if one.axis]
    if scalings:
        picture = path.with_suffix(".png")
        _plot(scalings, picture)
        axes = ", ".join(dict.fromkeys(one.axis for one in scalings))
        lines += [f"![Seconds against {axes}, both axes logarithmic]({picture.name})", ""]
    for system in dict.fromkeys(one.system for one in measured):
        lines += [f"## {system}", "", *_table([one for one in measured if one.system == system]), ""]
    kept = former.partition(KEPT)
    path.write_text("\n".join(lines).rstrip() + "\n" + (f"\n{KEPT}{kept[2]}" if kept[1] else ""), encoding="utf-8")
    return path


def _run(file: Path, out: Path) -> list[Measured]:
    command = [sys.executable, "-m", "pytest", str(file), "-o", "addopts=", "--import-mode=importlib", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "--benchmark-only", f"--benchmark-json={out}"]
    command += ["-o", "filterwarnings="]  # a file without a benchmark warns, which the project's settings make an error
    # A worker of pytest-xdist must not pass for one of the run that it starts: nothing would be timed.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    collected_nothing = 5
    if done.returncode not in (0, collected_nothing):
        raise InputError(
            f"{file.name} failed; run `pytest {file}` to see why\n{done.stdout[-1500:]}{done.stderr[-500:]}"
        )
    if not (out.exists() and out.stat().st_size):
        return []
    system = file.stem.removeprefix("test_")
    return [_measured(system, one) for one in json.loads(out.read_text(encoding="utf-8"))["benchmarks"]]


def _measured(system: str, one: dict[str, Any]) -> Measured:
    extra, stats = one["extra_info"], one["stats"]
    name = one["name"].removeprefix("test_").replace("_", " ")
    return Measured(
        system,
        one["group"] or "",
        name,
        stats["min"],
        stats["median"],
        stats["rounds"],
        extra.get("axis", ""),
        float(extra.get("size", "nan")),
    )


def _machine() -> list[str]:
    """Say where and when, without naming a host or a person."""
    versions = []
    for library in LIBRARIES:
        try:
            versions.append(f"{library} {importlib.metadata.version(library)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return [
        f"{WRITTEN} on {today}: {_processor()}, {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}; {', '.join(versions)}.",
        "",
        "Best and median of repeated calls in one process. Compare within a group: its last column is the ratio of the "
        "best times to the group's first.",
    ]


def _processor() -> str:
    if importlib.util.find_spec("cpuinfo") is None:
        return platform.machine()
    found = importlib.import_module("cpuinfo").get_cpu_info()
    return str(found.get("brand_raw", platform.machine()))


def _table(rows: Sequence[Measured]) -> list[str]:
    lines = ["| group | what | best | median | rounds | to the first |", "|---|---|---:|---:|---:|---:|"]
    for group in dict.fromkeys(one.group for one in rows):
        members = [one for one in rows if one.group == group]
        for place, one in enumerate(members):
            label = (group or "–") if place == 0 else ""
            ratio = f"{one.best / members[0].best:.2g}" if group else ""
            lines.append(f"| {label} | {one.name} | {_time(one.best)} | {_time(one.median)} | {one.rounds} | {ratio} |")
    return lines


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def peer_ratios(measured: Sequence[Measured]) -> dict[str, float]:
    """Return by group and peer how many times as long the peer takes as the group's first, where that is ours."""
    found: dict[str, float] = {}
    for group in dict.fromkeys(one.group for one in measured if one.group):
        members = [one for one in measured if one.group == group]
        ours = members[0]
        for one in members[1:]:
            if (peer := _peer(one)) and not _peer(ours):
                name = f"{group}, beside {peer}"
                found[name] = min(found.get(name, np.inf), one.best / ours.best)
    return found


def _peer(one: Measured) -> str:
    return next((peer for peer in PEERS if peer in one.name), "")


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _plot_peers(ratios: dict[str, float], path: Path) -> None:
    import matplotlib.pyplot as plt

    names = sorted(ratios, key=lambda name: ratios[name])
    values = np.array([ratios[name] for name in names])
    figure, axis = plt.subplots(figsize=(9.0, 0.8 + 0.3 * len(names)), layout="constrained")
    axis.barh(
        [name.replace("_", " ") for name in names],
        values - 1.0,
        left=1.0,
        color=np.where(values >= 1.0, "#1f77b4", "#d62728").tolist(),
        height=0.6,
    )
    for place, value in enumerate(values):
        side = {"ha": "left", "xytext": (4, 0)} if value >= 1.0 else {"ha": "right", "xytext": (-4, 0)}
        axis.annotate(_times(value), (value, place), textcoords="offset points", va="center", fontsize=8, **side)
    axis.axvline(1.0, color="0.3", linewidth=1)
    axis.set_xscale("log")
    axis.set_xlim(min(0.1, 0.15 * values.min()), max(10.0, 6.0 * values.max()))
    axis.set_xlabel("time of the other software / time of dpbayes", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(axis="x", color="0.92")
    axis.set_axisbelow(True)
    figure.savefig(path, dpi=150, facecolor="white")
    plt.close(figure)


def _plot(scalings: Sequence[Measured], path: Path) -> None:
    import matplotlib.pyplot as plt

    axes_named = list(dict.fromkeys(one.axis for one in scalings))
    columns = min(3, len(axes_named))
    rows = -(-len(axes_named) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.4 * columns, 2.7 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(axes_named) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, axes_named, strict=False):
        members = [one for one in scalings if one.axis == name]
        for group in dict.fromkeys(one.group for one in members):
            points = np.array(sorted((one.size, one.best) for one in members if one.group == group))
            axis.loglog(points[:, 0], points[:, 1], "o-", markersize=4, linewidth=1, label=group)
        sizes = sorted({one.size for one in members})
        axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axis.minorticks_off()
        low, high = (scale(one.best for one in members) for scale in (min, max))
        axis.set_ylim(
            10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high))
        )  # whole decades: no slope is made up
        axis.set_xlabel(name, fontsize=9)
        axis.set_ylabel("seconds", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(color="0.92")
        # Above the axes, where no line is: names of groups are sentences.
        axis.legend(frameon=False, fontsize=7, loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0)
    figure.savefig(path, dpi=100, facecolor="white")
    plt.close(figure)
