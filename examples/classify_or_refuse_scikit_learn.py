"""Nearest neighbours on features of anything, with the doubtful answers left out."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from laplacian_metric.integrations.scikit_learn import LaplaceEmbedding


def main(steps: int = 300) -> dict[str, float]:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
    embedding = LaplaceEmbedding(max_iter=steps, random_state=0)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), embedding, KNeighborsClassifier(1)),
        {"laplaceembedding__n_components": [4, 16]},
        cv=3,
    ).fit(X, y)

    right = search.predict(X_test) == y_test
    scaler, embedding, _ = search.best_estimator_
    doubt = embedding.score_uncertainty(scaler.transform(X_test))
    surest = np.argsort(doubt)[: int(0.8 * len(doubt))]
    return {"accuracy": right.mean(), "accuracy of the surest 80 %": right[surest].mean()}


if __name__ == "__main__":
    print(main())  # noqa: T201
