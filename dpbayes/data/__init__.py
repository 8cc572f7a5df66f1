"""Attributes, exact tables, and embedded data. Everything counted here is confidential until released."""

from dpbayes.data import datasets
from dpbayes.data.domain import Attribute, Domain
from dpbayes.data.tables import Marginal, check_consistent, marginals

__all__ = ["Attribute", "Domain", "Marginal", "check_consistent", "datasets", "marginals"]
