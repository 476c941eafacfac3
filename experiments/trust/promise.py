"""Is the promised error kept when the probability chooses what to answer, and how much is answered by each score?"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.trust.measure import Scored
from laplacian_metric.retrieval.abstention import NoThresholdError, choose_threshold

SPLITS = 200
DELTA = 0.1
# The error rate that is promised, as a share of that of answering everything.
SHARE_OF_ERROR = 0.5


def promise(scored_queries: Scored, names: tuple[str, ...]) -> dict[str, Any]:
    """Return, by score, in how many splits of the test queries the promise is broken and the mean share answered."""
    wrong = ~scored_queries.right
    alpha = round(SHARE_OF_ERROR * float(wrong.mean()), 3)
    result: dict[str, Any] = {"alpha": alpha, "delta": DELTA, "splits": SPLITS}
    for name in names:
        scores = scored_queries.scores["test"][name]
        broken, answered = 0, []
        for split in range(SPLITS):
            order = np.random.default_rng(split).permutation(len(scores))
            calibration, later = np.array_split(order, 2)
            try:
                threshold = choose_threshold(
                    scores[calibration], wrong[calibration], alpha=alpha, delta=DELTA
                )
            except NoThresholdError:
                answered.append(0.0)
                continue
            answers = threshold.answers(scores[later])
            answered.append(float(answers.mean()))
            broken += bool(answers.any()) and float(wrong[later][answers].mean()) > alpha
        result[name] = {"broken": broken / SPLITS, "answered": float(np.mean(answered))}
    return result
