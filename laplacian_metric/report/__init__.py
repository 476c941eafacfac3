"""Reports: plots, the self-contained HTML page that they are put into, and the report of a run.

The last is `laplacian_metric.report.run_report`, which loads matplotlib.
"""

from __future__ import annotations

from laplacian_metric.core.files import OutputFolderError, output_folder
from laplacian_metric.report.page import Block, Page, Paragraph, Picture, Section, Table

__all__ = ["Block", "OutputFolderError", "Page", "Paragraph", "Picture", "Section", "Table", "output_folder"]
