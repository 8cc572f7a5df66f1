"""The error about a damaged budget book, with the one remedy that does not refill the budget.

A copy knows nothing of the releases made after it. Whoever restores it and goes on has their budget twice, so the
remedy is a copy *and* what was released since; `docs/privacy.md` describes it step by step.
"""

from dpbayes.errors import DamagedFileError

__all__ = ["RESTORE", "damaged"]

RESTORE = (
    "restore the newest copy and open it with expected_head=, the last head you noted; every release made since that "
    "copy still counts and must be reserved again first"
)


def damaged(what: str) -> DamagedFileError:
    """Return the error for a book of which `what` is wrong.

    Examples
    --------
    >>> print(damaged("budget.db is truncated"))
    budget.db is truncated; restore the newest copy and open it with expected_head=, ...
    """
    return DamagedFileError(f"{what}; {RESTORE}")
