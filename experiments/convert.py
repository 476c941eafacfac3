"""Convert results and half-finished runs of earlier versions, so that this one reads and resumes them.

    python -m experiments.convert --results figures/results --work WORK

Configurations once left out options at their defaults and named options that have left since. Both are written out and
dropped here, in result files, in the configurations of networks in WORK, and in the checkpoints of trainings that are
not finished. Converted files stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.arguments import parser
from experiments.harness.results import record_text
from experiments.harness.sections import DataSection, EvaluationSection, LossSection, NetworkSection
from experiments.harness.work import CONFIG, TRAINED, write_json, write_text
from laplacian_metric import methods
from laplacian_metric.core.checked import read_json
from laplacian_metric.training import TrainingOptions, checkpoint
from laplacian_metric.training.checks import plain

# Options that methods had once. Where a result names the value that they always had, nothing is lost by leaving it out.
LEFT: Mapping[str, Mapping[str, Any]] = {
    "laplace": {
        "score": "1/kappa",
        "variant": "default",
        "triplets": 5000,
        "batch_size": 256,
        "samples": 100,
    },
    "online-laplace": {"score": "1/kappa", "preset": "default", "defects": []},
    "pfe": {"variant": "paper"},
    "hib": {"variant": "paper"},
    "mc-dropout": {"variant": "default"},
}
REMEDY = "restore it, or run its cell again"


def converted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with every option of this version, and none that has left.

    Example:
        >>> converted({"method": {"name": "laplace", "score": "1/kappa"}})["method"]["structure"]
        'diag'
    """
    whole = dict(config)
    for key, section in (("loss", LossSection()), ("evaluation", EvaluationSection())):
        if key in whole:
            whole[key] = {**section.model_dump(mode="json"), **whole[key]}
    if "network" in whole:
        defaults = NetworkSection(name=whole["network"]["name"]).model_dump(mode="json")
        whole["network"] = {**defaults, **whole["network"]}
    if "data" in whole:
        defaults = DataSection(train=whole["data"]["train"]).model_dump(mode="json")
        tested = "out" in whole["data"]  # a network's settings say nothing about what is tested
        kept = {key: value for key, value in defaults.items() if tested or key not in DataSection.TESTED}
        whole["data"] = {**kept, **whole["data"]}
    if "training" in whole:
        whole["training"] = {**plain(asdict(TrainingOptions())), **whole["training"]}
    if "method" in whole:
        name = whole["method"]["name"]
        options = plain(asdict(methods.make(name)))  # type: ignore[call-overload]
        left = LEFT.get(name, {})
        stored = {
            key: value
            for key, value in whole["method"].items()
            if key in options or left.get(key, ...) != value
        }
        whole["method"] = {"name": name, **options, **stored}
    if "base_config" in whole:
        whole["base_config"] = converted(whole["base_config"])
    return whole


def convert_results(folder: Path) -> int:
    """Convert all result files below a folder; return how many have changed."""
    changed = 0
    for path in sorted(folder.rglob("seed*.json")):
        content = read_json(path, REMEDY)
        if "cell" not in content or not content.get("config"):
            continue
        config = converted(content["config"])
        if config != content["config"]:
            write_text(path, record_text({**content, "config": config}))
            changed += 1
    return changed


def convert_work(folder: Path) -> int:
    """Convert the networks below a folder, and checkpoints of trainings that are not finished."""
    changed = 0
    for path in sorted(folder.rglob(CONFIG)):
        config = read_json(path, REMEDY)
        whole = converted(config)
        if whole == config:
            continue
        if not (path.parent / TRAINED).exists():
            for state in sorted(path.parent.glob("*.safetensors")):
                tensors, identity, progress = checkpoint.read(state)
                cell = {key: value for key, value in whole.items() if key != "training"}
                checkpoint.save(state, tensors, {**identity, "cell": cell}, progress)
        write_json(path, whole)
        changed += 1
    return changed


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert results and networks."""
    command = parser(__doc__)
    command.add_argument("--results", type=Path, help="folder of result files")
    command.add_argument("--work", type=Path, help="folder of networks and features")
    options = command.parse_args(arguments)
    if options.results is not None:
        print(f"{convert_results(options.results)} results converted")
    if options.work is not None:
        print(f"{convert_work(options.work)} networks converted")


if __name__ == "__main__":
    main()
