"""The demo's fixed choices, apart so that the command line can name them without loading torch."""

from __future__ import annotations

EPOCHS = 14
BATCH_SIZE = 128
LEARNING_RATE = 5e-4
WEIGHT_DECAY = 1e-5
MARGIN = 0.7
RANK = 50
VALIDATION = 500  # of the training images
SAMPLED_SPACES = 50

# What is promised of retrieval that refuses.
ALPHA, DELTA, LEVEL = 0.1, 0.1, 0.9

CURVATURE_BATCH = 256
COMPARED_IMAGES = 24
TIMING_REPEATS = 5
TIMING_SECONDS = 0.5

REPORT_NAME = "report.html"
