from pathlib import Path

import pytest

from dpbayes.errors import SpecError
from dpbayes.runs import load_spec
from dpbayes.runs.spec import _index, _line

GOOD = """\
system = "latent-class"
title = "A study"

[data]
embedded = "acs_tables"

[privacy]
epsilon = 1.0
"""


@pytest.fixture
def write(tmp_path):
    def _write(text: str):
        path = tmp_path / "study.toml"
        path.write_text(text)
        return path

    return _write


def mistake(write, text: str, *overrides: str) -> str:
    with pytest.raises(SpecError) as error:
        load_spec(write(text), overrides)
    return str(error.value)


def test_defaults_are_written_out_and_read_back_as_the_same_spec(write, tmp_path):
    loaded = load_spec(write(GOOD))
    assert 'method = "many-chains"' in loaded.resolved
    again = tmp_path / "resolved.toml"
    again.write_text(loaded.resolved)
    assert load_spec(again).spec == loaded.spec
    assert load_spec(again).digest == loaded.digest


def test_an_override_changes_one_value(write):
    loaded = load_spec(write(GOOD), ["privacy.epsilon=0.5", "privacy.noise=laplace"])
    assert loaded.spec.privacy.epsilon == 0.5
    assert loaded.spec.privacy.noise == "laplace"
    assert loaded.digest != load_spec(write(GOOD)).digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("epsilon = 1.0", "epsilom = 1.0"),
            "line 8: privacy.epsilom is not a key of [privacy]; did you mean 'epsilon'?",
        ),
        (
            ("epsilon = 1.0", 'epsilon = "1"'),
            "line 8: privacy.epsilon: must be a valid number, without quotes, got '1'",
        ),
        (("epsilon = 1.0", "epsilon = -1.0"), "line 8: privacy.epsilon: must be greater than 0, got -1.0"),
        (("epsilon = 1.0", "epsilon = nan"), "line 8: privacy.epsilon"),
        (("epsilon = 1.0", "epsilon = inf"), "line 8: privacy.epsilon"),
        (("[privacy]", "[privacyy]"), "line 7: privacyy is not a key of a spec; did you mean 'privacy'?"),
        (('"acs_tables"', '"acs"'), "line 5: data.embedded: must be 'acs_tables' or 'persons', got 'acs'"),
        (('"latent-class"', '"latent-clas"'), "did you mean 'latent-class'?"),
        (('system = "latent-class"', ""), "names no system"),
        (("epsilon = 1.0", "epsilon ="), "not valid TOML"),
    ],
)
def test_a_mistake_comes_with_its_line_value_and_remedy(write, change, message):
    assert message in mistake(write, GOOD.replace(*change))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('title="a\\nb"', r"title: title must be printable text on one line, got 'a\\nb'"),
        ("title=", "title: title must be text of 1 to 500 characters"),
        ("privacy=1", r"privacy is a section, \[privacy\] with keys in it; got 1"),
    ],
)
def test_a_title_is_one_line_and_a_section_is_no_value(write, override, message):
    with pytest.raises(SpecError, match=message):
        load_spec(write(GOOD), [override])


def test_several_mistakes_are_reported_together(write):
    text = mistake(write, GOOD.replace("epsilon = 1.0", "epsilon = -1.0\nadjacency = 3"))
    assert "2 mistakes" in text
    assert "line 8" in text
    assert "line 9" in text


@pytest.mark.parametrize("override", ["privacy.epsilon", "=3", "title.x=1", ".=1"])
def test_a_malformed_override_is_refused(write, override):
    assert "--set" in mistake(write, GOOD, override)


def test_a_key_in_an_array_of_tables_has_its_neighbour_named(write):
    questions = '[[questions]]\nname = "q"\nformul = "y ~ x"\n'
    text = f'system = "verifier"\ntitle = "t"\n[data]\nembedded = "wages"\n[privacy]\nepsilon = 1.0\n{questions}'
    said = "line 9: questions.0.formul is not a key of [questions.0]; did you mean 'formula'?"
    assert said in mistake(write, text)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no spec"):
        load_spec(tmp_path / "none.toml")


def test_lines_are_found_through_quotes_dots_and_comments():
    text = "a.b = 1\n\n[ data . levels ] # comment\n'the age' = [0]\n\"x\" = 1\n"
    assert _line(_index(text), ("a", "b")) == 1
    assert _line(_index(text), ("data", "levels", "the age")) == 4
    assert _line(_index(text), ("data", "levels", "x")) == 5
    assert _line(_index(text), ("data", "levels", "y")) == 3
    assert _line(_index(text), ("none",)) is None


def test_a_mark_of_the_encoding_and_the_line_ends_of_windows_are_read(tmp_path):
    text = Path("models/acs_latent_class.toml").read_text(encoding="utf-8")
    path = tmp_path / "study.toml"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert load_spec(path).digest == load_spec("models/acs_latent_class.toml").digest


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"title = '\xe9'", "not UTF-8 text .at byte 9.; save it as UTF-8"),
        (b"x = " + b"9" * 5000, "study.toml holds a number of too many digits"),
        (b"x = " + b"[" * 5000, "nested too deeply"),
        (b"\xff\xfe", "not UTF-8"),
        (b"", "names no system"),
    ],
)
def test_what_cannot_be_read_as_a_spec_is_one_error(tmp_path, raw, message):
    path = tmp_path / "study.toml"
    path.write_bytes(raw)
    with pytest.raises(SpecError, match=message):
        load_spec(path)


def test_a_number_of_too_many_digits_in_an_override_is_one_error():
    with pytest.raises(SpecError, match=r"--set privacy\.epsilon holds a number of too many digits"):
        load_spec("models/acs_latent_class.toml", [f"privacy.epsilon={'9' * 5000}"])


def test_a_folder_is_no_spec(tmp_path):
    with pytest.raises(FileNotFoundError, match="is a folder, no spec"):
        load_spec(tmp_path)


def test_thousands_of_mistakes_are_counted_and_the_first_ones_shown(tmp_path):
    path = tmp_path / "study.toml"
    wrong = "\n".join(f"key_{i} = {i}" for i in range(3000))
    path.write_text(f'system = "verifier"\ntitle = "t"\n[data]\nembedded = "wages"\n[model]\n{wrong}\n')
    with pytest.raises(SpecError, match=r"has 3,00\d mistakes") as error:
        load_spec(path)
    assert len(str(error.value).splitlines()) == 22 and str(error.value).endswith(" more")
