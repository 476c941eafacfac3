"""Galleries in FAISS and in databases: `open_gallery` loads the adapter that an address asks for."""

from __future__ import annotations

from laplacian_metric.core.gallery import Gallery, GalleryError, Sample, open_gallery

__all__ = ["Gallery", "GalleryError", "Sample", "open_gallery"]
