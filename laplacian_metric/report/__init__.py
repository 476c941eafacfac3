"""Reports: plots and the self-contained HTML page that they are put into."""

from __future__ import annotations

from laplacian_metric.report.folder import OutputFolderError, output_folder
from laplacian_metric.report.page import Page, Paragraph, Picture, Section, Table

__all__ = ["OutputFolderError", "Page", "Paragraph", "Picture", "Section", "Table", "output_folder"]
