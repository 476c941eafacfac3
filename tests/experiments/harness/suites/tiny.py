"""A suite that runs in seconds, on the images that are installed with the package."""

from __future__ import annotations

import copy
from typing import Any

SAMPLE, DIGITS = "sample-fashion-mnist", "sample-mnist"
CONTENT: dict[str, Any] = {
    "name": "tiny",
    "version": 1,
    "title": "Tiny",
    "reference": "deterministic",
    "seeds": [0, 1],
    "resamples": 20,
    "tracks": {
        "sample": {
            "title": "The sample",
            "image_size": 28,
            "channels": 1,
            "network": {"name": "fashion-mnist", "dim": 8},
            "training": {"epochs": 1, "batch_size": 32, "optimizer": "adam", "weight_decay": 1e-5},
            "train": {
                "data": SAMPLE,
                "split": "train",
                "classes": [0, 1, 2],
                "per_class": 40,
                "held_out": False,
            },
            "validation": {"data": SAMPLE, "split": "train", "classes": [2, 4, 6], "per_class": 30},
            "choice": {
                "others": {"data": SAMPLE, "split": "validation", "classes": [0, 2, 4], "per_class": 12}
            },
            "unseen": {
                "clothes": {"data": SAMPLE, "split": "test", "classes": [0, 2, 6], "per_class": 20},
                "digits": {"data": DIGITS, "split": "test", "per_class": 8},
            },
            "seen": {"data": SAMPLE, "split": "train", "classes": [0, 1, 2], "held_out": True},
            "changed": 6,
            "corruptions": ["noise"],
            "strengths": [1.0],
        }
    },
    "entries": {
        "deterministic": {
            "title": "Deterministic",
            "tracks": ["sample"],
            "method": {"name": "deterministic"},
            "score": "embedding norm",
            "settings": [{"training": {"learning_rate": 1e-3}}],
        },
        "laplace": {
            "title": "LAM",
            "tracks": ["sample"],
            "method": {"name": "laplace"},
            "base": "deterministic",
            "settings": [{"method": {"temperature": 1.0}}, {"method": {"temperature": 0.01}}],
        },
    },
}


def content() -> dict[str, Any]:
    """Return the suite as plain values, to be changed."""
    return copy.deepcopy(CONTENT)
