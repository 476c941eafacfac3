"""What `experiments.retrieval` measures: embeddings of trained networks, and what refusing does to their answers."""

from __future__ import annotations
