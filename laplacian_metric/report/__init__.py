"""One page: an evaluation, drawn. Its figures, its cards of images, and the comparison of several evaluations.

`laplacian_metric.report.run_report` makes the page of a run; it loads matplotlib.
"""

from __future__ import annotations

from laplacian_metric.report.page import Card, Gallery, Neighbour, Page, Paragraph, Picture, Section, Table

__all__ = ["Card", "Gallery", "Neighbour", "Page", "Paragraph", "Picture", "Section", "Table"]
