"""README, gallery and site say what is there: examples run, pictures exist, every study is shown."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dpbayes.runs import load_spec

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GALLERY = (ROOT / "models" / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "models" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LIST = re.compile(r"<p>(?:(?!</p>).)*\n[*] ", re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    return code


def test_the_two_commands_stand():
    assert "pip install uv && uv run dpbayes run models/acs_latent_class.toml" in README
    assert "\n    uv run pytest\n" in README


def test_the_readme_example_is_short_and_uses_public_names_with_their_arguments():
    import importlib
    import inspect

    code = example()
    assert len(code.splitlines()) <= 20
    tree = ast.parse(code)
    names = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert alias.name in module.__all__
                names[alias.name] = getattr(module, alias.name)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    checked = 0
    for call in calls:
        target = ast.unparse(call.func).split(".")
        if target[0] not in names:
            continue
        function = names[target[0]]
        for part in target[1:]:
            function = getattr(function, part)
        given = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        inspect.signature(function).bind_partial(*([None] * len(call.args)), **given)
        checked += 1
    assert checked >= 6


@pytest.mark.slow
def test_the_readme_example_runs():
    flags = {"PYTENSOR_FLAGS": "", "PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "MPLBACKEND": "Agg"}
    settings = "latent_class.sampler_defaults(release)"
    fewer = example().replace(f"**{settings}", f"**({settings} | {{'chains': 64, 'batches': 2, 'rounds': 1}})")
    assert "'chains': 64" in fewer
    checked = fewer + "\nassert len(frames) == 5 and frames[0].shape == (10_000, 5)"
    done = subprocess.run([sys.executable, "-c", checked],
                          cwd=ROOT, env=flags, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_pictures_lead_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "api/")):
            assert (page.parent / target).exists(), target


def test_the_gallery_shows_every_spec_with_question_picture_time_and_command():
    specs = sorted((ROOT / "models").glob("*.toml"))
    parts = re.split(r"^### ", GALLERY, flags=re.MULTILINE)
    sections = {part.split("\n", 1)[0]: part for part in parts[1:]}
    assert sections.keys() == {path.name for path in specs}
    for path in specs:
        section = sections[path.name]
        assert load_spec(path).spec.question in section
        assert f"(pictures/{path.stem}.png)" in section
        assert f"dpbayes run models/{path.name}" in section
        assert re.search(r"(second|minute)", section)
    for path in (ROOT / "models").glob("*.py"):
        assert f"`{path.name}`" in GALLERY


def test_pictures_are_small():
    pictures = [*(ROOT / "models" / "pictures").iterdir(), *(ROOT / "docs" / "pictures").iterdir()]
    assert {path.stem for path in pictures if path.parent.parent.name == "models"} == {
        path.stem for path in (ROOT / "models").glob("*.toml")
    }
    for path in pictures:
        assert path.stat().st_size < 150_000, path.name


def test_the_readme_names_every_system():
    from dpbayes.runs.registry import SYSTEMS

    table = README.split("## Which system for which question")[1].split("##")[0]
    for system in SYSTEMS:
        assert f"`{system.replace('-', '_')}`" in table


def test_every_page_is_in_the_sites_navigation():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in config, page.name


def test_every_public_room_has_a_page_of_its_interface():
    import dpbayes

    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for room in dpbayes.__all__:
        if room != "__version__":
            assert f"api/{room}.md" in config, room


def test_extras_that_the_docs_name_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    known = {*project["project"]["optional-dependencies"], *project["dependency-groups"]}
    for page in PAGES:
        for name in re.findall(r"--(?:extra|group) ([\w-]+)", page.read_text(encoding="utf-8")):
            assert name in known, f"{page.name}: {name}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="needs a checkout")
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]*)"', page.read_text(encoding="utf-8")
        )
        assert not [url for url in loaded if "canonical" not in url], (page.name, loaded)
    assert "<math" in (tmp_path / "site" / "api" / "mvg.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_formula_is_set_in_italics(page):
    """An asterisk or an underscore of a formula that Markdown reads as emphasis is gone from the page."""
    markdown = pytest.importorskip("markdown")  # of the docs group
    text = markdown.markdown(page.read_text(encoding="utf-8"), extensions=["tables", "fenced_code"])
    set_so = [re.sub(r"<code>.*?</code>", "", part) for part in re.findall(r"<em>(.*?)</em>", text, re.DOTALL)]
    assert [part for part in set_so if re.search(r"[=+^_‖|]", part)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_lists_are_lists(page):
    markdown = pytest.importorskip("markdown")
    assert not LIST.search(markdown.markdown(page.read_text(encoding="utf-8"), extensions=["tables"]))
