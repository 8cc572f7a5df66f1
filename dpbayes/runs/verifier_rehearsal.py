"""What a run of the verifier tries on invented counts, so that nothing that public numbers rule out costs budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpbayes.errors import InputError, SpecError

if TYPE_CHECKING:
    from dpbayes.privacy import Release
    from dpbayes.runs.verifier_spec import Spec

__all__ = ["invented_release", "rehearse"]

# Three counts, each moved up by noise of this chance: the sum of one release in ten million lies farther off.
_FAR = 1e-3


def invented_release(spec: Spec) -> Release:
    """Return a release of the spec's design with invented counts: questions, M and noise are those asked for.

    Parameters
    ----------
    spec
        A spec that pays for a release. No record is read.
    """
    from dpbayes.verifier import PartitionCounts, release_counts

    assert spec.privacy is not None
    m, privacy = spec.privacy.n_partitions, spec.privacy
    counts = PartitionCounts(m - m // 2, m // 2, 0, assignment=privacy.assignment)
    return release_counts(
        {question.name: counts for question in spec.questions},
        epsilon=privacy.epsilon,
        adjacency=privacy.adjacency,
        noise=privacy.noise,
        with_failures=privacy.with_failures,
        shares=[question.share for question in spec.questions],
        rng=np.random.default_rng(0),
    )


def rehearse(spec: Spec) -> None:
    """Draw from the posterior of invented counts, or build their model, and sum the posteriors hardest to sum.

    Parameters
    ----------
    spec
        A spec that pays for a release. No record is read.

    Raises
    ------
    SpecError
        If M, epsilon and prior admit releases whose posterior has too many terms.
    """
    from dpbayes.verifier import build_model, draw_release
    from dpbayes.verifier.exact import DEFAULT_MAX_TERMS, posterior_of_counts

    invented, alpha = invented_release(spec), spec.model.alpha
    m, size = invented.n, invented.tables[0].counts.size
    assert isinstance(m, int)
    # The windows of the sum are widest where the counts do not add to M, and where they contradict the prior.
    extremes = np.vstack([np.full((1, size), m // size), m * np.eye(size)])
    try:
        for law in {table.noise for table in invented.tables}:
            for counts in extremes + np.floor(law.tail_radius(_FAR)):
                posterior_of_counts(counts, law, m, alpha=alpha)
    except InputError as error:
        assert spec.privacy is not None
        most = round(DEFAULT_MAX_TERMS ** (1 / (size - 1))) - 1
        prior = "" if alpha is None else f" and model.alpha = {alpha}"
        raise SpecError(
            f"with privacy.n_partitions = {m}, privacy.epsilon = {spec.privacy.epsilon:g}{prior} the posterior of a "
            f"release can have more than {DEFAULT_MAX_TERMS:,} terms; lower n_partitions (up to {most:,} every release "
            f"has fewer){', weaken alpha' if prior else ''} or raise epsilon; nothing was released"
        ) from error
    if spec.model.pooling == "partial":
        build_model(invented, pooling="partial")
    else:
        draw_release(invented, **spec.model.drawing())
