import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpbayes import __version__
from dpbayes.cli.main import app, main

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
    assert "target_accept" in result.stdout


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
    def stop(spec, context):
        if drawn:
            (context.folder / "release.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("dpbayes.runs.latent_class.run", stop)
    monkeypatch.setattr(sys, "argv", ["dpbayes", "run", "models/acs_latent_class.toml", "--out", f"{tmp_path}/run"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    kept = f" the release is kept in {tmp_path}/run.partial;" if drawn else ""
    assert capsys.readouterr().err == f"dpbayes: interrupted;{kept} the same command goes on\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["check", "models/acs_latent_class.toml", "--set", "privacy.epsilon=-1"]]
)
def test_help_and_spec_errors_import_no_model_library(arguments):
    code = f"""
import sys
sys.argv = ["dpbayes", *{arguments!r}]
from dpbayes.cli import main
try:
    main()
except SystemExit:
    pass
heavy = {{"pymc", "pytensor", "arviz", "matplotlib", "scipy", "polars", "opendp"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_import_is_light():
    code = "import sys, dpbayes; assert not {'numpy', 'pymc', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_models_shows_square_brackets_as_they_are(tmp_path):
    spec = Path("models/acs_latent_class.toml").read_text()
    (tmp_path / "a.toml").write_text(spec.replace('question = "What', 'question = "[data] [/x] What'))
    (tmp_path / "b.toml").write_text('system = "latent-class"\ntitle = "t"\n[data]\nx = 1\n')
    result = runner.invoke(app, ["models", str(tmp_path)], env={"COLUMNS": "300"})
    assert "[data] [/x] What" in result.stdout
    assert "not a key of [data]" in result.stdout


def test_models_without_specs_says_where_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dpbayes", "models"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "models") in said
    assert "not in the installed package" in said
