"""The notebooks run as scripts, and their rendered forms hold the same cells and no errors."""

import ast
import base64
import importlib
import io
import json
import re
import runpy
from pathlib import Path

import pytest
from PIL import Image

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
SOURCES = sorted(NOTEBOOKS.glob("*.py"))
# Rendered cells show results, never where they were made.
PATHS = re.compile(r"(/(?:home|root|tmp|work|Users)/|[A-Z]:\\\\Users)")


def _imports(path: Path) -> list[tuple[str, str, str]]:
    """Return module, name and local name of every import from dpbayes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [
        (node.module, alias.name, alias.asname or alias.name)
        for node in nodes
        if node.module and node.module.split(".")[0] == "dpbayes"
        for alias in node.names
    ]


def _marked(path: Path):
    compiling = {("dpbayes.inference", name, name) for name in ("sample", "simulate_and_rank")}
    samples = bool(compiling & set(_imports(path)))  # compiles a PyMC model
    return pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if samples else [])


def _rendered(source: Path) -> dict:
    return json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))


def _texts(notebook: dict) -> list[tuple[str, str]]:
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def _check_named(figure) -> None:
    """Every figure says in words what is along x, and what along y unless the ticks are words themselves."""
    figure.draw_without_rendering()
    ticks = [label.get_text() for axis in figure.axes for label in axis.get_yticklabels()]
    in_words = any(re.search("[A-Za-z]{3}", text.replace("mathdefault", "")) for text in ticks)
    assert figure.get_supxlabel() or any(axis.get_xlabel() for axis in figure.axes)
    assert figure.get_supylabel() or in_words or any(axis.get_ylabel() for axis in figure.axes)


def test_every_notebook_has_both_forms():
    assert SOURCES
    assert {path.stem for path in SOURCES} == {path.stem for path in NOTEBOOKS.glob("*.ipynb")}


@pytest.mark.parametrize("source", [_marked(path) for path in SOURCES])
def test_source_runs(source, monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setenv("DPBAYES_SMOKE", "1")
    with plt.rc_context():
        plt.switch_backend("Agg")
        try:
            namespace = runpy.run_path(str(source), run_name="__main__")
            assert namespace["SMOKE"] is True
            assert plt.get_fignums(), "a notebook without a figure"
            for number in plt.get_fignums():
                _check_named(plt.figure(number))
        finally:
            plt.close("all")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_rendered_form_has_the_same_cells(source):
    jupytext = pytest.importorskip("jupytext")
    assert _texts(_rendered(source)) == [(cell.cell_type, cell.source) for cell in jupytext.read(source).cells]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_rendered_form_is_executed_clean_and_small(source):
    path = source.with_suffix(".ipynb")
    assert path.stat().st_size < 400_000
    code = [cell for cell in _rendered(source)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    for picture in pictures:
        with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
            assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
    for output in outputs:
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr"
        text = json.dumps({key: value for key, value in output.get("data", {}).items() if key != "image/png"})
        assert not PATHS.search(text + "".join(output.get("text", [])))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_source_uses_public_names_only(source):
    tree = ast.parse(source.read_text(encoding="utf-8"))
    imports = _imports(source)
    assert imports
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import) and "dpbayes" in ast.dump(node)]
    rooms = {}
    for module, name, local in imports:
        assert "._" not in module
        if module == "dpbayes":
            rooms[local] = importlib.import_module(f"dpbayes.{name}")
        else:
            room = importlib.import_module(module)
            public = getattr(room, "__all__", None) or [found for found in vars(room) if not found.startswith("_")]
            assert name in public, f"{module}.{name} is not public"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_"), f"{node.attr} is not public"
            if isinstance(node.value, ast.Name) and node.value.id in rooms:
                assert node.attr in rooms[node.value.id].__all__, f"{node.value.id}.{node.attr} is not public"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_source_is_short_and_names_no_place(source):
    text = source.read_text(encoding="utf-8")
    assert not PATHS.search(text)
    assert 12 <= len(re.findall(r"^# %%", text, re.MULTILINE)) <= 20
