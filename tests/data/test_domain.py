import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbayes.data import Attribute, Domain
from dpbayes.errors import InputError


def test_domain_projects_in_the_order_asked_for():
    domain = Domain.from_levels({"a": (0, 1), "b": ("x", "y", "z"), "c": (5, 7)})
    assert domain.project(["c", "b"]).shape == (2, 3)
    assert domain.axes(["c", "a"]) == (2, 0)
    assert domain.size == 12
    assert len(domain.cell_labels()) == 12
    assert domain.cell_labels()[1] == "a: 0, b: x, c: 7"


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (("one",), "at least two levels"),
        (("x", "x"), "repeats level 'x'"),
        ((0.5, 1.0), "text or integers, got 0.5"),
        ((True, False), "text or integers, got True"),
        ((0, 1, "unknown"), r"mix text and integers.* make all of them text: \['0', '1', 'unknown'\]"),
    ],
)
def test_an_attribute_refuses_levels_that_are_no_levels(levels, message):
    with pytest.raises(InputError, match=message):
        Attribute("a", levels)


def test_a_domain_names_the_unknown_attribute_and_the_known_ones():
    domain = Domain.from_levels({"a": (0, 1), "b": (0, 1)})
    with pytest.raises(InputError, match=r"'c' is not in the domain; it has 'a', 'b'"):
        domain.project(["c"])
    with pytest.raises(InputError, match="stands twice"):
        domain.project(["a", "a"])
    with pytest.raises(InputError, match="at least one attribute"):
        Domain(())


names = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4, unique=True)
labels = st.one_of(
    st.lists(kind, min_size=2, max_size=4, unique=True) for kind in (st.integers(-9, 9), st.text(max_size=3))
)


@given(st.data(), names)
def test_a_domain_survives_its_json_form(data, names):
    domain = Domain.from_levels({name: data.draw(labels) for name in names})
    assert Domain.from_dict(domain.to_dict()) == domain


@pytest.mark.parametrize("damaged", [None, {}, [1], [{"name": "a"}], [{"name": "a", "levels": "xy"}]])
def test_a_damaged_domain_is_refused(damaged):
    with pytest.raises(InputError):
        Domain.from_dict(damaged)


def test_a_domain_shows_itself_with_its_names_escaped():
    assert "&lt;18" in Domain.from_levels({"age": ("<18", "18+")})._repr_html_()


def test_labels_are_shown_and_decide_nothing():
    plain = Domain.from_levels({"age": (0, 1), "sex": (1, 2), "car": (0, 1)})
    labels = {"age": {0: "under 18", "1": "18 or over"}, "car": ["no", "yes"]}
    domain = Domain.from_levels({a.name: a.levels for a in plain}, labels)
    assert domain == plain and hash(domain) == hash(plain)
    assert domain.cell_labels()[-1] == "18 or over, sex: 2, car: yes"
    assert domain.cell_labels(" ", names=False)[0] == "under 18 1 no"
    assert domain["sex"].words == ("1", "2") and domain["age"].labels == ("under 18", "18 or over")
    assert Domain.from_dict(domain.to_dict()).cell_labels() == domain.cell_labels()
    assert "labels" not in plain.to_dict()[0]
    assert "18 or over" in domain._repr_html_()


def test_a_level_without_a_label_keeps_its_own():
    assert Attribute("age", (0, 1, 9), {9: "not stated"}).words == ("0", "1", "not stated")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({2: "old"}, r"labels of 'age' are for \['2'\], no levels of it; those are \[0, 1\]"),
        (("young",), "2 levels and 1 labels; label each level"),
        (("young", "young"), "two levels of 'age' are labelled 'young'"),
        ({0: "1"}, "two levels of 'age' are labelled '1'"),
        ({0: 5}, "must be text, got 5; put it in quotes"),
        ((" ", "old"), "must be text, got ' '"),
        ("young", "must be a sequence, got str"),
    ],
)
def test_labels_that_are_no_labels_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        Attribute("age", (0, 1), labels)
    with pytest.raises(InputError, match=message):
        Domain.from_levels({"age": (0, 1)}, {"age": labels})


def test_labels_of_an_attribute_without_levels_are_refused():
    with pytest.raises(InputError, match=r"labels name \['sex'\], which has no levels; there are \['age'\]"):
        Domain.from_levels({"age": (0, 1)}, {"sex": ("f", "m")})


def test_a_blank_level_has_a_name_on_pages_and_pictures():
    domain = Domain.from_levels({"vote": ("yes", ""), "town": (" ", "Zürich")})
    assert domain["vote"].words == ("yes", "(blank)") and domain["town"].words == ("(blank)", "Zürich")
    assert domain.cell_labels()[2] == "vote: (blank), town: (blank)"


def test_long_names_and_levels_and_many_of_them_are_refused_in_a_short_message():
    many = [str(i) for i in range(50_000)]
    cases = [
        ("x" * 2000, (0, 1), ()),
        ("a", ("x" * 2000, "y"), ()),
        ("a", [*many, 1], ()),
        ("a", [*many, "49999"], ()),
        ("a", many, [*many[:-1], "0"]),
        ("a", many, {f"no {level}": "no" for level in many}),
    ]
    for case in cases:
        with pytest.raises(InputError) as refused:
            Attribute(*case)
        assert len(str(refused.value)) < 1500
