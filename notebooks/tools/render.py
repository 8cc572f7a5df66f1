"""Execute percent-format notebooks and write them beside their sources: ``python notebooks/tools/render.py mvg bloom``.

The rendered form holds the same cells (a test compares them), outputs, and nothing that changes from run to run: no
times, no random cell ids, no machine's kernel.
"""

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1]
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def render(source: Path) -> Path:
    """Execute one source and write its ``.ipynb``; a cell that raises ends the run and nothing is written."""
    notebook = jupytext.read(source)
    notebook.metadata = METADATA
    NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False).execute()
    for place, cell in enumerate(notebook.cells):
        cell["id"], cell["metadata"] = f"{source.stem}-{place:02d}", {}
    notebook.metadata = METADATA
    nbformat.validate(notebook)
    target = source.with_suffix(".ipynb")
    nbformat.write(notebook, target)
    return target


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.py"))
    for name in names:
        print(render(FOLDER / f"{name}.py").name)
