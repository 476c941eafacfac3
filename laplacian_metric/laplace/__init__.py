"""Laplace approximations of the posterior over the weights of an embedding network."""

from __future__ import annotations
