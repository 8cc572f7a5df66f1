"""What the page of a verification says in words: claims, answers, and what the answers tell of the whole data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dpbayes.runs.verifier_spec import Question, Spec

__all__ = ["claim_words", "claims_of", "reading", "sentence"]

_PERCENT = "\N{NO-BREAK SPACE}%"


def claims_of(spec: Spec) -> dict[str, Question]:
    """Return the questions by name; a spec that reads a finished release has none."""
    return {question.name: question for question in spec.questions}


def reading(claims: Mapping[str, Question], names: Iterable[str]) -> str:
    """Say what r tells of the whole data: a claim about a threshold and one of significance read differently.

    Examples
    --------
    >>> claim = Question(name="a", formula="y ~ x", coefficient="x", significant_at=0.05)
    >>> "more than half" in reading({"a": claim}, ["a"]), "more than half" in reading({}, ["a"])
    (False, True)
    """
    asked = [claims.get(name) for name in names]
    said = []
    if any(one is None or one.threshold is not None for one in asked):
        said.append(
            "A claim about a threshold holds in more than half of the partitions exactly where it holds in the whole "
            "data, if estimates scatter evenly about the truth; hence the probability of r > 1/2."
        )
    if any(one is None or one.significant_at is not None for one in asked):
        said.append(
            "For a claim of significance r is the power of the test in one partition, which falls as partitions get "
            "smaller: P(r > 1/2) does not say whether the coefficient is significant in the whole data."
        )
    return " ".join(said)


def sentence(
    name: str, claim: Question | None, failed: float | None, mean: float, low: float, high: float, majority: float
) -> str:
    """Answer a question: the share, its interval and, unless the claim is one of significance, the majority."""
    among = (
        "partitions"
        if failed is None
        else f"the computable partitions (about {100 * failed:.0f}{_PERCENT} could not be computed)"
    )
    share = (
        f"\u201c{name}\u201d holds in {100 * mean:.0f}{_PERCENT} of {among}, 95{_PERCENT} interval "
        f"{100 * low:.0f} to {100 * high:.0f}{_PERCENT}"
    )
    if claim is not None and claim.significant_at is not None:
        return f"{share}: the power of the test in one partition, not whether the whole data are significant."
    return f"{share}, and in most of them with probability {majority:.3f}."


def claim_words(question: Question) -> str:
    """Say what a question asks."""
    claim = (
        f"significant at {question.significant_at:g}"
        if question.significant_at is not None
        else f"{question.direction} {question.threshold:g}"
    )
    model = {"gaussian": "least squares", "logistic": "logistic regression", "poisson": "Poisson regression"}
    absorbed = f", fixed effects of {', '.join(question.absorb)}" if question.absorb else ""
    return (
        f"\u201c{question.name}\u201d: is the coefficient of {question.coefficient} {claim} in {question.formula} "
        f"({model[question.family]}{absorbed})?"
    )
