"""The model card of a posterior: Markdown below a front matter in YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from laplacian_metric.trust.trust import Trust

LIBRARY = "laplacian_metric"
TAGS = ["metric-learning", "uncertainty", "laplace-approximation"]


def card(title: str, config: Mapping[str, Any], trust: Trust | None) -> str:
    """Return the card's text.

    Args:
        title: its heading.
        config: what `hub.save_folder` writes about the posterior.
        trust: that is stored with it.
    """
    parts = [
        f"---\n{_front_matter(config)}---\n",
        f"# {_line(title)}\n",
        _about(config),
        _metrics(config["metrics"]),
        _how_to_load(config),
        "" if trust is None else _calibration(trust),
        "## Licence\n\n"
        f"{_line(config['licence'])}, for the posterior. The encoder has a licence of its own.\n",
    ]
    return "\n".join(part for part in parts if part)


def _front_matter(config: Mapping[str, Any]) -> str:
    metadata: dict[str, Any] = {
        "library_name": LIBRARY,
        "license": config["licence"],
        "tags": TAGS,
    }
    if re.fullmatch(r"[\w.-]+/[\w.-]+", config["encoder_reference"]):
        metadata["base_model"] = config["encoder_reference"]
    return yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)


def _about(config: Mapping[str, Any]) -> str:
    encoder, fit, settings = config["encoder"], config["fit"], config["settings"]
    rows = {
        "encoder": config["encoder_reference"],
        "encoder's fingerprint": encoder["fingerprint"],
        "features, dimensions": f"{encoder['features']}, {encoder['outputs']}",
        "loss": _loss(config["loss"]),
        "structure": settings["structure"],
        "approximation": settings["approximation"],
        "fitted to": f"{fit['num_images']} images",
        "n_effective": _number(settings["n_effective"]),
        "temperature": _number(settings["temperature"]),
        "prior precision": _number(settings["prior_precision"]),
    }
    return (
        "A Laplace posterior over the weights of an encoder's last layer. With it the encoder gives every input a "
        "distribution\nof directions instead of a point, with a concentration that says how certain it is. The encoder "
        "itself is not in this folder.\n\n" + _table(("", ""), rows)
    )


def _loss(loss: Mapping[str, Any]) -> str:
    fields = ", ".join(f"{name}={value!r}" for name, value in (loss["fields"] or {}).items())
    return f"{loss['kind']}({fields})"


def _metrics(metrics: Mapping[str, float | None]) -> str:
    if not metrics:
        return ""
    rows = {name: "not defined" if value is None else f"{value:.4f}" for name, value in metrics.items()}
    return "## Metrics\n\n" + _table(("metric", "value"), rows)


def _how_to_load(config: Mapping[str, Any]) -> str:
    ours = str(config["loss"]["kind"]).startswith("hessians.")
    return f"""## How to load it

```python
from laplacian_metric.integrations.hub import load_folder

encoder = ...  # {_line(config["encoder_reference"])}
lam = load_folder(folder, encoder{"" if ours else ", loss"})  # folder: where this card is
embedding = lam.embed(inputs)  # embedding.point, embedding.kappa, embedding.uncertainty
```

An encoder with other weights than those that the posterior was fitted to is refused.
"""


def _calibration(trust: Trust) -> str:
    """Return what the `Trust` in the folder is, how well it is calibrated, and how to load it."""
    error, gallery, view = trust.calibration_error, trust.spaces.gallery, trust.spaces.view
    rows = {}
    if gallery is not None:
        rows["gallery"] = f"{len(gallery)} items" + ("" if view is None else f" of {len(view.names)} classes")
    if error is not None:
        rows["calibrated on"] = f"{error.queries} queries"
        rows["expected calibration error"] = (
            f"{error.value:.3f} (95 % interval {error.low:.3f} to {error.high:.3f}), cross-validated on these queries"
        )
    rows["out-of-distribution (OOD) queries"] = "not used"
    rows_of = "h" if trust.spaces.head is None else "encoder.features(inputs)"
    return f"""## Which matches can be trusted

This folder holds a calibrated `Trust` with its gallery: for each query the nearest item, the probability that it is
right, and the reason.

{_table(("calibration", ""), rows)}
```python
from laplacian_metric.integrations.hub import load_trust

trust = load_trust(folder)
answer = trust({rows_of})  # answer.probability, answer.labels, answer.verdict
```
"""


def _table(heads: tuple[str, str], rows: Mapping[str, str]) -> str:
    lines = [f"| {heads[0]} | {heads[1]} |", "|---|---|"]
    lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return f"{value:g}"


def _line(text: str) -> str:
    """On one line, without what would end a block."""
    return " ".join(str(text).split()).replace("```", "'''")


def _cell(text: str) -> str:
    return _line(text).replace("\\", "\\\\").replace("|", "\\|")
