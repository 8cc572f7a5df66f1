"""Matrix Gaussian noise with directions: the paper's mechanism, its bound, and the exact privacy cost beside it.

Names load on first use; importing this package brings in neither PyMC nor scikit-learn.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Covariance": "covariance",
        "FeatureRanges": "sensitivity",
        "FrobeniusBall": "sensitivity",
        "MatrixGaussian": "cost",
        "MomentQuery": "moments",
        "MomentRelease": "release",
        "RecordEllipsoid": "sensitivity",
        "build_moment_model": "model",
        "build_record_model": "model",
        "calibrate": "cost",
        "calibrate_moments": "moments",
        "compare_noise": "allocation",
        "exact_mu": "cost",
        "moment_posterior": "posterior",
        "mu_for": "cost",
        "naive_regression": "regression",
        "optimal_covariance": "allocation",
        "bound_terms": "bound",
        "release_moments": "release",
        "release_records": "release",
        "unimodal_noise": "bound",
        "whiten_moments": "regression",
        "whiten_records": "regression",
    },
)
