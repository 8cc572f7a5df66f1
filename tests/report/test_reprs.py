"""What a notebook shows of the nouns: small tables, with every label escaped."""

import re

import numpy as np
import pytest

from dpbayes.data import Domain, Marginal
from dpbayes.ide import Prior
from dpbayes.inference import Finding, Verdict
from dpbayes.privacy import create_ledger, release_tables
from dpbayes.verifier import PartitionCounts, posterior, release_counts

EVIL = "<script>alert('x')</script>&"


def nouns(tmp_path):
    rng = np.random.default_rng(1)
    domain = Domain.from_levels({EVIL: (EVIL, "b"), "plain": (0, 1)})
    release = release_tables([Marginal(domain, [[1, 2], [3, 4]])], epsilon=1.0, rng=rng)
    finding = Finding("rhat", EVIL, 1.2, 1.01, passed=False, remedy=EVIL)
    ledger = create_ledger(tmp_path / "book.json", epsilon=1.0, delta=1e-6, adjacency="replace-one")
    question = release_counts(PartitionCounts(41, 8, 1), epsilon=1.0, rng=rng)
    return {
        "Domain": domain,
        "Release": release,
        "Verdict": Verdict((finding,), variables=(EVIL,)),
        "Prior": Prior.full(domain),
        "Ledger": ledger,
        "Posterior": posterior(question),
    }


@pytest.mark.parametrize("name", ["Domain", "Release", "Verdict", "Prior", "Ledger", "Posterior"])
def test_a_noun_shows_itself_small_and_escaped(name, tmp_path):
    html = nouns(tmp_path)[name]._repr_html_()
    assert html.startswith("<")
    assert len(html) < 4_000
    assert "<script>" not in html
    for tag in ("table", "tr", "td", "th", "caption", "tbody", "thead"):
        opened, closed = len(re.findall(rf"<{tag}[ >]", html)), html.count(f"</{tag}>")
        assert opened == closed, tag
