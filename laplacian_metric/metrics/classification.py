"""What an embedding knows of classes that it was not taught: by neighbours, a linear layer, and clusters."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor

from hessians.checks import check_finite, check_matrix
from laplacian_metric.core.search import search_blocks
from laplacian_metric.metrics.positives import Labels, as_labels, check_length


def weighted_votes(
    embeddings: Tensor, database: Tensor, database_labels: Labels, *, k: int = 200, temperature: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Return each query's share of votes for each class, (Q, C), and the classes' labels (C,), ascending.

    The k nearest of the gallery vote with weights exp(cosine/temperature).

    Args:
        embeddings: (Q, Z), unit vectors.
        database, database_labels: the gallery, (M, Z) and (M,).
        k: how many vote; all where the gallery has fewer.
        temperature: of the weights.

    Example:
        >>> gallery = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> votes, classes = weighted_votes(gallery[:1], gallery, [4, 7, 7], k=3, temperature=1.0)
        >>> classes.tolist(), [round(x, 2) for x in votes[0].tolist()]
        ([4, 7], [0.46, 0.54])
    """
    check_matrix("database", database)
    labels = as_labels("database_labels", database_labels).to(database.device)
    check_length("database_labels", len(labels), len(database), "rows of the database")
    if k < 1 or not temperature > 0:
        raise ValueError(
            f"k is {k} and temperature {temperature}: at least one neighbour and a positive number"
        )
    classes, code = torch.unique(labels, return_inverse=True)
    votes = torch.zeros(len(embeddings), len(classes), dtype=torch.float64, device=database.device)
    for rows, neighbours in search_blocks(embeddings, min(k, len(database)), database=database):
        weights = (neighbours.similarities / temperature).softmax(1)
        votes[rows].scatter_add_(1, code[neighbours.indices], weights)
    return votes, classes


def knn_correct(
    embeddings: Tensor,
    labels: Labels,
    *,
    database: Tensor,
    database_labels: Labels,
    k: int = 200,
    temperature: float = 0.1,
) -> Tensor:
    """Return for each query whether the weighted vote of its k nearest names its class, bool (Q,).

    Example:
        >>> z = torch.eye(2)
        >>> knn_correct(z, [0, 0], database=z, database_labels=[0, 1], k=1).tolist()
        [True, False]
    """
    votes, classes = weighted_votes(embeddings, database, database_labels, k=k, temperature=temperature)
    query_labels = as_labels("labels", labels).to(votes.device)
    check_length("labels", len(query_labels), len(votes), "queries")
    return classes[votes.argmax(1)] == query_labels


def knn_accuracy(
    embeddings: Tensor,
    labels: Labels,
    *,
    database: Tensor,
    database_labels: Labels,
    k: int = 200,
    temperature: float = 0.1,
) -> float:
    """Return the share of queries whose class the weighted vote of their k nearest names; see `weighted_votes`.

    Example:
        >>> z = torch.eye(2)
        >>> knn_accuracy(z, [0, 0], database=z, database_labels=[0, 1], k=1)
        0.5
    """
    options = {"database": database, "database_labels": database_labels}
    return float(knn_correct(embeddings, labels, **options, k=k, temperature=temperature).double().mean())  # type: ignore[arg-type]


def probe_correct(
    features: Tensor, labels: Labels, *, database: Tensor, database_labels: Labels, weight: float = 1.0
) -> Tensor:
    """Return for each query whether a linear classifier that the gallery trained names its class, bool (Q,).

    Logistic regression on features of mean 0 and variance 1 over the gallery, until it converges.

    Args:
        features: (Q, H).
        labels: (Q,).
        database, database_labels: what it is trained on, (M, H) and (M,).
        weight: of the data against the squared norm of the weights (scikit-learn's C).

    Example:
        >>> h = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
        >>> probe_correct(h, [0, 0, 1, 0], database=h, database_labels=[0, 0, 1, 1]).tolist()
        [True, True, True, False]
    """
    for name, rows in (("features", features), ("database", database)):
        check_matrix(name, rows)
        check_finite(name, rows)
    query_labels, gallery_labels = as_labels("labels", labels), as_labels("database_labels", database_labels)
    check_length("labels", len(query_labels), len(features), "queries")
    check_length("database_labels", len(gallery_labels), len(database), "rows of the database")
    if len(torch.unique(gallery_labels)) < 2:
        raise ValueError("database_labels has one class: a classifier needs at least 2")
    mean, deviation = database.double().mean(0), database.double().std(0).clamp(min=1e-12)
    scaled = [((rows.double() - mean) / deviation).cpu().numpy() for rows in (database, features)]
    classifier = (
        import_module("sklearn.linear_model")
        .LogisticRegression(C=weight, max_iter=1000)
        .fit(scaled[0], gallery_labels.cpu().numpy())
    )
    predicted = torch.from_numpy(classifier.predict(scaled[1]))
    return predicted == query_labels.cpu()


def linear_probe(
    features: Tensor, labels: Labels, *, database: Tensor, database_labels: Labels, weight: float = 1.0
) -> float:
    """Return the accuracy of a linear classifier on frozen features; see `probe_correct`.

    Example:
        >>> h = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
        >>> linear_probe(h, [0, 0, 1, 0], database=h, database_labels=[0, 0, 1, 1])
        0.75
    """
    correct = probe_correct(
        features, labels, database=database, database_labels=database_labels, weight=weight
    )
    return float(correct.double().mean())


def clustering_nmi(
    embeddings: Tensor, labels: Labels, *, clusters: int | None = None, repeats: int = 10, seed: int = 0
) -> float:
    """Return the normalised mutual information of the labels with k-means clusters of the embeddings (N, Z).

    2 I/(H + H'), from 0 for independent ones to 1; what is usual for classes that no label was seen of.

    Args:
        embeddings: (N, Z).
        labels: (N,).
        clusters: how many; as many as there are classes by default.
        repeats: starts of k-means, the best of which is taken.
        seed: of the starts.

    Example:
        >>> clustering_nmi(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), [0, 0, 1, 1])
        1.0
    """
    check_matrix("embeddings", embeddings)
    check_finite("embeddings", embeddings)
    classes = as_labels("labels", labels).cpu()
    check_length("labels", len(classes), len(embeddings), "embeddings")
    number = len(torch.unique(classes)) if clusters is None else clusters
    if not 1 <= number <= len(embeddings):
        raise ValueError(f"clusters is {number} for {len(embeddings)} embeddings: a number from 1 to these")
    means = import_module("sklearn.cluster").KMeans(number, n_init=repeats, random_state=seed)
    means.fit(embeddings.detach().cpu().double().numpy())
    information = import_module("sklearn.metrics").normalized_mutual_info_score
    return round(float(information(classes.numpy(), means.labels_)), 12)


def classified(
    embeddings: Tensor,
    labels: Labels | None,
    database: Tensor | None,
    database_labels: Labels | None,
    neighbours: int | None,
    features: Tensor | None,
    database_features: Tensor | None,
) -> dict[str, Tensor]:
    """Return whether the classifiers that are asked for are right about each query (Q,), by name.

    Example:
        >>> z = torch.eye(2)
        >>> classified(z, [0, 1], z, [0, 1], 1, None, None)
        {'knn@1': tensor([True, True])}
    """
    if (features is None) != (database_features is None):
        raise ValueError(
            "features and database_features go together: a linear probe is trained on the latter"
        )
    if neighbours is None and features is None:
        return {}
    if database is None or database_labels is None:
        raise ValueError("neighbours and features need a labelled gallery: pass database and database_labels")
    query_labels, correct = check_classes(labels), {}
    if neighbours is not None:
        correct[f"knn@{neighbours}"] = knn_correct(
            embeddings, query_labels, database=database, database_labels=database_labels, k=neighbours
        )
    if features is not None and database_features is not None:
        correct["linear probe"] = probe_correct(
            features, query_labels, database=database_features, database_labels=database_labels
        )
    return correct


def check_classes(labels: Labels | None) -> Labels:
    """Return the labels of queries that have classes; refuse others."""
    if labels is None:
        raise TypeError(
            "positives have no classes, which neighbours, linear probe and clusters need: pass labels"
        )
    return labels
