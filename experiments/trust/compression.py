"""What it costs `Trust` to keep the gallery's features in fewer bytes.

    python -m experiments.trust.compression --data DATA --cache CACHE --out figures

Features are stored in float16, as their largest principal components (of the uncentred second moment, since directions
are compared) in float16, or as codes of FAISS' product quantiser; queries keep float32, but for the components. All
is fitted on the gallery. Embeddings, which are short, stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import svds

from experiments.arguments import folders
from experiments.trust.__main__ import QUERIES, inputs_of
from experiments.trust.measure import NOVELTY, TRUST, Compress, inputs, measures, scored
from experiments.trust.settings import NAMES, setting
from laplacian_metric.core.files import atomic_write

Rows = NDArray[Any]
SHOWN = {"R": TRUST, "S": NOVELTY, "O": TRUST}
COMPONENTS = (256, 128, 64)
CODE_BYTES = 64
SMALL = 2048  # columns, up to which all components are computed


def components(gallery: Rows, count: int) -> tuple[Compress, int]:
    """Return the projection on the largest components, and the bytes of an item."""
    rows = gallery.astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    if rows.shape[1] <= SMALL:
        basis = np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :count].astype(np.float32)
    else:  # Lanczos' method: no matrix of all pairs of columns
        basis = svds(rows, k=count, random_state=0, return_singular_vectors="vh")[2].T.astype(np.float32)
    return (lambda h: (h.astype(np.float32) @ basis).astype(np.float16)), 2 * count


def quantised(gallery: Rows) -> tuple[Compress, int]:
    """Return what a product quantiser makes of the gallery's rows, others as they are, and the bytes of an item."""
    rows = gallery.astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    width = rows.shape[1]
    pieces = max(piece for piece in range(1, CODE_BYTES + 1) if width % piece == 0)
    bits = min(8, int(np.log2(len(rows))))  # as many codes as there are items at the most
    quantiser = faiss.ProductQuantizer(width, pieces, bits)
    quantiser.train(rows)

    def compress(h: Rows) -> Rows:
        if h.shape != gallery.shape or not np.array_equal(h, gallery):
            return h
        return np.asarray(quantiser.decode(quantiser.compute_codes(rows)))

    return compress, -(-pieces * bits // 8)


def forms(gallery: Rows) -> dict[str, Callable[[], tuple[Compress | None, int]]]:
    """Return how features may be stored, by name: what is compared then, and the bytes of an item."""
    width = gallery.shape[1]
    return {
        "float32": lambda: (None, 4 * width),
        "float16": lambda: ((lambda h: h.astype(np.float16)), 2 * width),
        **{
            f"{count} components": lambda count=count: components(gallery, count)  # type: ignore[misc]
            for count in COMPONENTS
            if count < width
        },
        "product quantiser": lambda: quantised(gallery),
    }


def main() -> None:
    """Measure every setting in every form, with the first seed, and write a table."""
    parser = folders(__doc__)
    parser.add_argument("--only", nargs="*", default=NAMES, choices=NAMES)
    options = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in options.only:
        content = setting(options.data, options.cache, name, 0)
        results[name] = {}
        for form, fitted in forms(content.parts["gallery:h"]).items():
            compress, size = fitted()
            arrays = (
                inputs_of(options.data, options.cache, name, 0)
                if compress is None
                else inputs(content, compress)
            )
            queries = scored(arrays, slice(0, QUERIES))
            row = {measure: measures(queries, score)[measure] for measure, score in SHOWN.items()}
            results[name][form] = {**row, "ECE": queries.calibration_error, "bytes": size}
            print(name, form, results[name][form], flush=True)
    path = options.out / "results" / "trust_compression.json"
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (options.out / "tables" / "trust_compression.md").write_text(table(results), encoding="utf-8")


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the table: the mean over settings, and the change against float32 with the worst one."""
    names = list(dict.fromkeys(form for forms_of in results.values() for form in forms_of))
    lines = [
        "# What it costs Trust to keep features in fewer bytes",
        "",
        f"Means over {len(results)} settings, first seed. Changes are against float32 in the settings that have the "
        "form, with the worst one. Embeddings keep float32. Made by "
        "`python -m experiments.trust.compression --data DATA --cache CACHE --out figures`.",
        "",
        "| features as | bytes of float32's | settings | R | S | O | ECE |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for form in names:
        having = [of for of in results.values() if form in of]
        share = np.mean([of[form]["bytes"] / of["float32"]["bytes"] for of in having])
        cells = []
        for measure in (*SHOWN, "ECE"):
            changes = np.array([of[form][measure] - of["float32"][measure] for of in having])
            value = f"{np.mean([of[form][measure] for of in having]):.3f}"
            worst = changes.max() if measure == "ECE" else changes.min()
            cells.append(
                value if form == "float32" else f"{value} ({changes.mean():+.3f}, worst {worst:+.3f})"
            )
        lines.append(f"| {form} | {share:.0%} | {len(having)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
