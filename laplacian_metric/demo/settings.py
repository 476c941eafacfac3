"""The demo's fixed choices, which the command line names without loading torch."""

from __future__ import annotations

EPOCHS = 25
BATCH_SIZE = 128
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-4
MARGIN = 1.3
WIDTH, DIM = 16, 32  # channels of the first convolution, dimensions of the embedding

ALPHA, DELTA = 0.1, 0.1  # at most this share of the answers is wrong, but for this probability
PROMISING = 200  # validation images that choose the threshold; the others calibrate the probability

COMPARED_IMAGES = 24
EXAMPLES = 6  # images shown for each reason
NEIGHBOURS = 5

REPORT_NAME = "report.html"
