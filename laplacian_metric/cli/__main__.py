"""`python -m laplacian_metric.cli` is the command `lam`."""

from laplacian_metric.cli import main

main()
