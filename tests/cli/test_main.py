import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpbayes import __version__
from dpbayes.cli.main import app, main
from dpbayes.report.document import Callout, Column, Document, Fact, PrivacyTerms, Section, Table, write_report

runner = CliRunner()


def test_version():
    assert runner.invoke(app, ["--version"]).stdout == f"dpbayes {__version__}\n"


@pytest.mark.parametrize("command", [[], ["run"], ["check"], ["models"], ["report"]])
def test_help_teaches(command):
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_models_lists_the_specs_with_their_questions():
    result = runner.invoke(app, ["models"], env={"COLUMNS": "200"})
    assert "acs_latent_class.toml" in result.stdout
    assert "latent-class" in result.stdout


def test_check_prints_every_default():
    result = runner.invoke(app, ["check", "models/acs_latent_class.toml", "--set", "privacy.epsilon=0.5"])
    assert "epsilon = 0.5" in result.stdout
    assert 'format = "parquet"' in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "none.toml"], "there is no spec none.toml"),
        (["run", "models/acs_latent_class.toml", "--set", "privacy.epsilon=-1"], "must be greater than 0, got -1"),
        (["run", "models/acs_latent_class.toml", "--set", "model.classes=3"], "model.classes is not a key of [model]"),
        (["check", "models/acs_latent_class.toml", "--set", "privacy.ledger=no.db"], "no.db"),
        (["report", "tests"], "is not a run folder"),
        (
            ["run", "models/acs_latent_class.toml", "--set", 'system=["mvg"]'],
            "system ['mvg'] is not known; did you mean 'mvg'?",
        ),
        (["privacy", "mvg", "--range", "2x0:1", "-n", "9", "--plot", "x.xyz"], "--plot needs a file ending in .png"),
        (["privacy", "mvg", "--range", "2x0:1", "-n", "9", "--plot", "none/x.png"], "there is no folder none"),
        (["privacy", "bloom", "-k", "1", "-m", "9", "-p", "0.1", "--plot", "x"], "--plot needs a file ending in .png"),
    ],
)
def test_bad_input_is_one_line_and_its_own_exit_code(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["dpbayes", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("drawn", [False, True])
def test_an_interrupt_has_a_sentence_and_an_exit_code_of_its_own(tmp_path, monkeypatch, capsys, drawn):
    def stop(loaded, context, *rest):
        if drawn:
            (context.folder / "release.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("dpbayes.runs.execution._run", stop)
    monkeypatch.setattr(sys, "argv", ["dpbayes", "run", "models/acs_latent_class.toml", "--out", f"{tmp_path}/run"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    kept = f" the release is kept in {tmp_path}/run.partial;" if drawn else ""
    assert capsys.readouterr().err == f"dpbayes: interrupted;{kept} the same command goes on\n"


@pytest.mark.parametrize(("drawn", "code"), [(False, 2), (True, 1)])
def test_an_error_after_the_release_has_another_code_than_one_before(tmp_path, monkeypatch, capsys, drawn, code):
    def stop(loaded, context, *rest):
        if drawn:
            (context.folder / "release.json").touch()
        raise OSError(28, "No space left on device", "trace.nc")

    monkeypatch.setattr("dpbayes.runs.execution._run", stop)
    monkeypatch.setattr(sys, "argv", ["dpbayes", "run", "models/acs_latent_class.toml", "--out", f"{tmp_path}/run"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code  # 2 says that nothing was run
    kept = f"The release was drawn before this and is kept in {tmp_path}/run.partial; a run goes on with it.\n"
    said = "dpbayes: [Errno 28] No space left on device: 'trace.nc'\n" + (kept if drawn else "")
    assert capsys.readouterr().err == said


MODEL_LIBRARIES = {"pymc", "pytensor", "arviz", "matplotlib", "opendp", "pandas", "formulaic", "polars", "scipy"}
# What a command may not import, beside what models need: it would take longer than the command itself.
LIGHT = [
    (["--help"], {"numpy", "pydantic", "rich"}),
    (["models"], {"numpy", "dpbayes.runs"}),
    (["privacy", "gaussian", "--epsilon", "1", "--delta", "1e-5"], {"rich"}),
    (["privacy", "gaussian", "--stddev", "1", "--compositions", "9"], {"rich"}),
    (["ledger", "show", "none.db"], {"rich"}),
    (["check", "models/acs_latent_class.toml", "--set", "privacy.epsilon=-1"], {"rich"}),
    (["keys", "latent_class"], {"rich"}),
]


def loaded_by(arguments):
    """Return the modules that a command leaves imported, and what it printed."""
    code = f"""
import sys
sys.argv = ["dpbayes", *{arguments!r}]
from dpbayes.cli import main
try:
    main()
except SystemExit:
    pass
print("loaded", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("loaded ")[2].split()), done.stdout + done.stderr


@pytest.mark.parametrize(("arguments", "not_needed"), LIGHT)
def test_a_fast_command_imports_no_model_library(arguments, not_needed):
    loaded, _ = loaded_by(arguments)
    assert "dpbayes.cli.main" in loaded and not (MODEL_LIBRARIES | not_needed) & loaded


def test_a_run_without_its_data_says_so_before_it_imports_what_it_would_need():
    loaded, printed = loaded_by(["run", "models/ide_massachusetts.toml", "--set", "data.public=none.csv"])
    assert "there is no file models/none.csv" in printed
    assert not {"scipy.stats", "scipy.optimize", "pymc", "pytensor", "matplotlib"} & loaded


def test_import_is_light():
    code = "import sys, dpbayes; assert not {'numpy', 'pymc', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_models_shows_square_brackets_as_they_are(tmp_path):
    spec = Path("models/acs_latent_class.toml").read_text()
    (tmp_path / "a.toml").write_text(spec.replace('question = "What', 'question = "[data] [/x] What'))
    (tmp_path / "b.toml").write_text('system = "latent-class"\ntitle = "t"\n[data\nx = 1\n')
    (tmp_path / "c.toml").write_text('system = "ide"\ntitle = "t"\n[data]\npublic = "far/away.csv"\n')
    result = runner.invoke(app, ["models", str(tmp_path)], env={"COLUMNS": "300"})
    assert "[data] [/x] What" in result.stdout
    assert "invalid" in result.stdout
    assert "(not here: far/away.csv; the spec says where to get it)" in result.stdout


def test_models_without_specs_says_where_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dpbayes", "models"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "models") in said
    assert "not in the installed package" in said


@pytest.fixture
def two_runs(tmp_path):
    folders = []
    for epsilon, adjacency in ((1.0, "replace-one"), (2.0, "add-remove")):
        folder = tmp_path / f"run{epsilon:g}"
        folder.mkdir()
        (folder / "spec.toml").write_text(f'system = "mvg"\ntitle = "t"\n[privacy]\nepsilon = {epsilon}\n')
        table = Table("error", "Error", [Column("what"), Column("value")], [("a", 1 / epsilon)])
        headline = [Fact("epsilon", f"epsilon in total, {adjacency}", epsilon, f"{epsilon:g}")]
        terms = PrivacyTerms(adjacency)
        sections = [Section("s", [table])]
        write_report(Document("t", "", "", Callout("good", "p"), headline, sections, {}, privacy=terms), folder)
        folders.append(str(folder))
    return folders


def test_compare_prints_the_settings_and_writes_the_page(two_runs, tmp_path):
    result = runner.invoke(app, ["compare", *two_runs, "--out", str(tmp_path / "c")], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "privacy.epsilon" in result.stdout
    assert "Different adjacency: Epsilons under different adjacencies promise different things" in result.stdout
    assert "\n  adjacency add-remove: epsilon 2\n" in result.stdout
    assert "epsilon in total, add-remove" in result.stdout
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"report.html", "facts.json"}


def test_a_page_is_replaced_only_on_request_and_a_run_never(two_runs, tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "c")
    runner.invoke(app, ["compare", *two_runs, "--out", out])
    for arguments, message in (
        (["--out", out], "pass --force"),
        (["--out", two_runs[0], "--force"], "is no comparison"),
    ):
        monkeypatch.setattr(sys, "argv", ["dpbayes", "compare", *two_runs, *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    assert runner.invoke(app, ["compare", *two_runs, "--out", out, "--force"]).exit_code == 0


def test_square_brackets_in_settings_are_shown_as_they_are(two_runs, tmp_path):
    for folder in two_runs:
        spec = Path(folder, "spec.toml")
        spec.write_text(spec.read_text() + f'[data]\nfile = "[/b] [data] {spec.parent.name}"\n')
    result = runner.invoke(app, ["compare", *two_runs, "--out", str(tmp_path / "c")], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "[/b] [data] run1" in result.stdout


def test_the_shell_completes_commands():
    asked = {**os.environ, "_DPBAYES_COMPLETE": "complete_bash", "COMP_WORDS": "dpbayes mo", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'dpbayes'; from dpbayes.cli import app; app(prog_name='dpbayes')"
    done = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["models"], done.stderr


def test_a_warning_is_a_sentence_without_the_line_that_gave_it():
    code = (
        "import importlib, warnings; own = importlib.import_module('dpbayes.cli.main'); "
        "own.app = lambda: warnings.warn('the noise is low', UserWarning, stacklevel=1); own.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "warning: the noise is low\n"
