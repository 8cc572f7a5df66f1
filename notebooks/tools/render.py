"""Execute percent-format notebooks and write them beside their sources: ``python notebooks/tools/render.py mvg bloom``.

``--out FOLDER`` writes them there instead, and leaves the checkout as it is; ``--jobs 2`` executes two at a time.

The rendered form holds the same cells (a test compares them), outputs, and nothing that changes from run to run: no
times, no random cell ids, no machine's kernel.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1]
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def render(source: Path, out: Path = FOLDER) -> Path:
    """Execute one source and write its ``.ipynb``; a cell that raises ends the run and nothing is written."""
    notebook = jupytext.read(source)
    notebook.metadata = METADATA
    options = {"timeout": 600, "kernel_name": "python3", "record_timing": False}
    NotebookClient(notebook, coalesce_streams=True, **options).execute()
    for place, cell in enumerate(notebook.cells):
        cell["id"], cell["metadata"] = f"{source.stem}-{place:02d}", {}
    notebook.metadata = METADATA
    nbformat.validate(notebook)
    target = out / f"{source.stem}.ipynb"
    nbformat.write(notebook, target)
    return target


def _timed(name: str, out: Path) -> str:
    started = time.perf_counter()
    target = render(FOLDER / f"{name}.py", out)
    return f"{target.name} ({time.perf_counter() - started:.0f}s)"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    # From the last name on: the longest, wikimedia, does not wait for the others.
    names = given.names or sorted((path.stem for path in FOLDER.glob("*.py")), reverse=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        for done in pool.map(_timed, names, [given.out] * len(names)):
            print(done, flush=True)
