"""Nearest neighbours on features of anything, which refuse to answer where the match cannot be trusted."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from laplacian_metric.integrations.scikit_learn import TrustClassifier


def main(threshold: float = 0.95) -> dict[str, float]:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
    model = TrustClassifier(threshold=threshold, random_state=0).fit(X, y)
    right = model.predict(X_test) == y_test
    accepted = model.probability(X_test) >= threshold
    noise = model.trust_(np.random.default_rng(0).uniform(0, 16, X_test.shape))
    return {
        "accuracy": right.mean(),
        "accuracy of accepted answers": right[accepted].mean(),
        "share of digits accepted": accepted.mean(),
        "share of noise accepted": (noise.verdict == "accept").mean(),
    }


if __name__ == "__main__":
    print(main())  # noqa: T201
