"""Matrix Gaussian noise with directions: the paper's mechanism, its bound, and the exact price beside it.

Names load on first use; importing this package brings in neither PyMC nor scikit-learn.
"""

from importlib import import_module
from typing import Any

# public name -> module that defines it
_EXPORTS = {
    "BoundCheck": "bound",
    "BoundTerms": "bound",
    "bound_terms": "bound",
    "check_bound": "bound",
    "harmonic_number": "bound",
    "precision_bound": "bound",
    "precision_bound_grid": "grid",
    "Covariance": "covariance",
    "FeatureRanges": "sensitivity",
    "FrobeniusBall": "sensitivity",
    "RecordEllipsoid": "sensitivity",
    "Sensitivity": "sensitivity",
    "Maximum": "vertices",
    "box_maximum": "vertices",
    "MatrixGaussian": "accounting",
    "calibrate": "accounting",
    "exact_mu": "accounting",
    "mu_for": "accounting",
    "DerivedDirections": "derived",
    "binary_allocation": "shapes",
    "derive_directions": "derived",
    "directional_shape": "shapes",
    "equimodal_noise": "directions",
    "split_mu": "derived",
    "unimodal_noise": "directions",
    "OptimalCovariance": "allocation",
    "optimal_covariance": "allocation",
    "optimal_variances": "allocation",
    "ClippedRecords": "clipping",
    "MatrixRelease": "mechanism",
    "clip_records": "clipping",
    "draw": "mechanism",
    "release_records": "mechanism",
    "RegressionPriors": "model",
    "build_moment_model": "model",
    "build_record_model": "model",
    "naive_regression": "regression",
    "whiten_moments": "regression",
    "whiten_records": "regression",
    "NoiseCost": "comparison",
    "compare_noise": "comparison",
    "CovarianceResult": "experiments",
    "covariance_study": "experiments",
    "SvrConfig": "svr",
    "SvrScore": "svr",
    "SvrStudy": "svr",
    "svr_study": "svr",
    "MomentQuery": "moments",
    "MomentRelease": "moment_release",
    "SymmetricGaussian": "symmetric",
    "calibrate_moments": "symmetric",
    "read_moments": "moment_release",
    "release_moments": "moment_release",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
