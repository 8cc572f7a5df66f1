"""Matrix Gaussian noise with directions: the paper's mechanism, its bound, and the exact privacy cost beside it.

Names load on first use; importing this package brings in neither PyMC nor scikit-learn.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Covariance": "matrix",
        "FeatureRanges": "sensitivity",
        "FrobeniusBall": "sensitivity",
        "MomentQuery": "moments",
        "MomentRelease": "moments",
        "build_moment_model": "model",
        "calibrate": "matrix",
        "calibrate_moments": "moments",
        "compare_noise": "allocation",
        "moment_posterior": "posterior",
        "naive_regression": "regression",
        "optimal_covariance": "allocation",
        "release_moments": "moments",
        "release_records": "matrix",
        "whiten_moments": "regression",
    },
)
