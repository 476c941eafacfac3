"""Retrieval that can refuse: an index of uncertain items, and what it may promise about its answers."""

from __future__ import annotations
