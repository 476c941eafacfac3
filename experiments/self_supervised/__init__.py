"""Embeddings of images that were learned without labels, and what their uncertainties are worth."""
