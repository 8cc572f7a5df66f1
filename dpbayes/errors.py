"""The errors that dpbayes raises on purpose, and the warnings it gives.

Every one derives from `DPBayesError` and from the builtin that a caller would catch, and every message gives the
value that was refused and the remedy. A warning derives from `DPBayesWarning` and names the remedy too.
"""

__all__ = ["AccuracyWarning", "BudgetExceededError", "DPBayesError", "DPBayesWarning", "DamagedFileError"]
__all__ += ["ExistingRunError", "IncompleteSamplingError", "InputError", "LedgerError", "MissingColumnError"]
__all__ += ["SpecError", "UnreadableDataError"]


class DPBayesError(Exception):
    """Base of every error that dpbayes raises on purpose."""


class InputError(DPBayesError, ValueError):
    """A value that the function cannot work with."""


class UnreadableDataError(InputError):
    """Records that their data engine could not read; what the engine says is left out, as it may quote records."""


class MissingColumnError(DPBayesError, KeyError):
    """A data frame lacks a column that was asked for."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument; a sentence should read as one.
        return str(self.args[0]) if self.args else ""


class DamagedFileError(DPBayesError, ValueError):
    """A file that dpbayes wrote no longer reads as it should."""


class SpecError(DPBayesError, ValueError):
    """A run spec that does not validate."""


class ExistingRunError(DPBayesError, FileExistsError):
    """A run folder is already there and overwriting was not asked for."""


class IncompleteSamplingError(DPBayesError, RuntimeError):
    """A sampler came back with fewer draws than were asked for."""


class LedgerError(DPBayesError, OSError):
    """The privacy ledger could not be opened, read or written."""


class BudgetExceededError(DPBayesError, ValueError):
    """A release would spend more than the ledger has left."""


class DPBayesWarning(UserWarning):
    """Base of every warning that dpbayes gives."""


class AccuracyWarning(DPBayesWarning):
    """An approximation is used where it is known to be poor."""
