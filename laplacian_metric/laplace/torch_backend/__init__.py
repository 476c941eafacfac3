"""The parts behind :mod:`laplacian_metric.laplace.backend`; none of them imports laplace-torch."""
