"""Bayesian inference that knows about privacy noise."""
