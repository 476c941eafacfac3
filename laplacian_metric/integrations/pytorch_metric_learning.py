"""pytorch-metric-learning: its testers with a posterior and its uncertainties, its trainers with our losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hessians import Pairs
from hessians.pair_loss import PairLoss
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.encoder import Encoder
from laplacian_metric.integrations.optional import base_class
from laplacian_metric.integrations.uncertainty_calculator import INSTALL, Beside, UncertaintyCalculator
from laplacian_metric.laplace.features import collect_features
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.trust.trust import Trust

__all__ = ["LAMTester", "TrainingLoss", "UncertaintyCalculator", "encoder_of", "fit_trust"]

_Tester: Any = base_class("pytorch_metric_learning.testers", "GlobalEmbeddingSpaceTester", INSTALL)


class LAMTester(_Tester):
    """A GlobalEmbeddingSpaceTester that embeds through a posterior.

    Retrieval is by the trained embeddings, as without it; an `UncertaintyCalculator` gets the uncertainties, and joint
    samples if there are any. In ``end_of_testing_hook(tester)`` and afterwards, ``tester.embedded[split]`` is the
    `StochasticEmbedding` of each split.

    Args:
        lam: fitted; or a function (trunk, embedder) -> LAM that fits one, called at the start of every test: what
            is tested during training has other weights each time.
        samples: how many joint samples; 0 for none, and no ``ece``.
        seed: of these samples.
        accuracy_calculator: an `UncertaintyCalculator` by default.
        options: of GlobalEmbeddingSpaceTester.
    """

    def __init__(
        self,
        lam: LAM | Callable[[nn.Module, nn.Module], LAM],
        *,
        samples: int = 0,
        seed: int = 0,
        accuracy_calculator: Any = None,
        **options: Any,
    ) -> None:
        for name in ("pca", "use_trunk_output"):
            if options.get(name):
                raise ValueError(
                    f"{name} would test something else than the posterior's embeddings: leave it out"
                )
        super().__init__(
            accuracy_calculator=UncertaintyCalculator()
            if accuracy_calculator is None
            else accuracy_calculator,
            **options,
        )
        self.lam: LAM | None = lam if isinstance(lam, LAM) else None
        self._make = None if isinstance(lam, LAM) else lam
        self.samples, self.seed = samples, seed
        self.embedded: dict[str, StochasticEmbedding] = {}
        self._parts: list[StochasticEmbedding] = []

    def test(
        self,
        dataset_dict: Mapping[str, Any],
        epoch: int,
        trunk_model: nn.Module | None = None,
        embedder_model: nn.Module | None = None,
        *others: Any,
        **named: Any,
    ) -> Any:
        """As in the library; without models it is the LAM's encoder that is tested."""
        if self._make is not None:
            if trunk_model is None:
                raise ValueError("trunk_model is missing: the LAM is made of it")
            trunk_model.eval()
            self.lam = self._make(trunk_model, nn.Identity() if embedder_model is None else embedder_model)
        assert self.lam is not None
        if trunk_model is None:
            trunk_model = self.lam.encoder
        self._check_models(trunk_model, embedder_model)
        self.embedded = {}
        return super().test(dataset_dict, epoch, trunk_model, embedder_model, *others, **named)

    def _check_models(self, trunk: nn.Module, embedder: nn.Module | None) -> None:
        assert self.lam is not None
        parameter_ids = {
            id(p) for model in (trunk, embedder) if model is not None for p in model.parameters()
        }
        if not {id(p) for p in self.lam.encoder.parameters()} <= parameter_ids:
            raise ValueError(
                "trunk_model and embedder_model are not what the LAM was fitted to: leave them out to test its "
                "encoder, or make the tester with a function (trunk, embedder) -> LAM"
            )

    def get_embeddings_for_eval(
        self, trunk_model: nn.Module, embedder_model: nn.Module, inputs: Any
    ) -> Tensor:
        del trunk_model, embedder_model  # they are the LAM's encoder
        assert self.lam is not None
        if self.dtype is not None:
            inputs = inputs.to(self.dtype)
        # The same state for every batch: all images of all splits share the draws.
        generator = torch.Generator(self.lam.encoder.head.weight.device).manual_seed(self.seed)
        e = self.lam.embed(inputs, samples=self.samples, generator=generator)
        self._parts.append(dataclasses.replace(e, gaussians=None))
        return e.point.to(self.data_device)

    def get_all_embeddings_for_all_splits(
        self, dataset_dict: Any, trunk_model: Any, embedder_model: Any, splits: Sequence[str], collate_fn: Any
    ) -> dict[str, Any]:
        embeddings: dict[str, Any] = {}
        for split in splits:
            self._parts = []
            embeddings |= super().get_all_embeddings_for_all_splits(
                dataset_dict, trunk_model, embedder_model, [split], collate_fn
            )
            self.embedded[split], self._parts = StochasticEmbedding.cat(self._parts), []
        return embeddings

    def do_knn_and_accuracies(
        self,
        accuracies: Any,
        embeddings_and_labels: Any,
        query_split_name: str,
        reference_names: Sequence[str],
    ) -> None:
        arguments = accuracies, embeddings_and_labels, query_split_name, reference_names
        calculator, e = self.accuracy_calculator, self.embedded[query_split_name]
        if not isinstance(calculator, UncertaintyCalculator):
            super().do_knn_and_accuracies(*arguments)
            return
        drawn = [self.embedded[name].samples for name in reference_names] if self.samples else []
        reference = torch.cat([part for part in drawn if part is not None], dim=1) if drawn else None
        with calculator.beside(Beside(e.uncertainty, e.samples, reference)):
            super().do_knn_and_accuracies(*arguments)


class TrainingLoss(nn.Module):
    """A loss over pairs in the form of the library's losses: train with it what its curvature is taken of.

    Args:
        loss: e.g. `hessians.ContrastiveLoss`; it gets the embeddings as they come out of the models.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> loss = TrainingLoss(ContrastiveLoss(margin=1.0))
        >>> u = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> round(loss(u, torch.tensor([0, 0, 1])).item(), 4)
        1.25
    """

    def __init__(self, loss: PairLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Sequence[Tensor] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The mean loss of the batch's pairs, or of those that a miner's tuple (of three or four) lists."""
        if ref_emb is not None or ref_labels is not None:
            raise ValueError(
                "ref_emb is given, but the pairs of this loss are within the batch: leave it out"
            )
        if indices_tuple is not None:
            return self.loss(embeddings, Pairs.from_indices(tuple(indices_tuple), len(embeddings)))
        if labels is None:
            raise ValueError(
                "labels are missing: they, or a miner's indices_tuple, say which images are pairs"
            )
        return self.loss(embeddings, Pairs.from_labels(labels))


def encoder_of(
    models: Mapping[str, nn.Module], *, example_inputs: Any = None, normalize: bool = True
) -> Encoder:
    """The encoder of a trainer's ``models``, {"trunk": ..., "embedder": ...}; its parameters are shared with them.

    Args:
        models: what was passed to the trainer; the embedder is optional, and the last of them ends in a linear layer.
        example_inputs: a few inputs to check the cut with at once.
        normalize: see `Encoder`.

    Example:
        >>> models = {"trunk": nn.Sequential(nn.Linear(4, 8), nn.ReLU()), "embedder": nn.Linear(8, 3)}
        >>> encoder = encoder_of(models)
        >>> encoder.head is models["embedder"], encoder.num_features
        (True, 8)
    """
    unknown = set(models) - {"trunk", "embedder"}
    if "trunk" not in models or unknown:
        raise ValueError(
            f'models has {", ".join(sorted(models)) or "no entry"}: "trunk" and, optionally, "embedder" are needed'
        )
    trunk, embedder = models["trunk"], models.get("embedder")
    module = trunk
    if embedder is not None and not isinstance(embedder, nn.Identity):
        module = nn.Sequential(trunk, embedder)
        module.training = trunk.training
    return Encoder.from_module(module, example_inputs=example_inputs, normalize=normalize)


def fit_trust(
    models: Mapping[str, nn.Module],
    gallery: Any,
    queries: Any,
    *,
    batch_size: int = 256,
    alpha: float = 0.05,
    progress: bool | None = None,
) -> Trust:
    """Return the calibrated trust in the nearest item of a gallery, for a trainer's ``models``.

    Call it in the ``end_of_epoch_hook`` of a trainer, or after training; ``trust(h)`` takes
    ``encoder_of(models).features(images)``.

    Args:
        models: {"trunk": ..., "embedder": ...}, as in `encoder_of`.
        gallery: data set of (image, label) that is searched.
        queries: data set of at least 50 others that the models were not trained on.
        batch_size: images that are embedded at once.
        alpha: the share of known queries that may be flagged as unlike anything seen.
        progress: whether to show a bar; None asks the terminal.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> labels = torch.arange(240) % 3
        >>> images = torch.eye(3)[labels] + 0.4 * torch.randn(240, 3, generator=torch.Generator().manual_seed(0))
        >>> gallery, queries = TensorDataset(images[:120], labels[:120]), TensorDataset(images[120:], labels[120:])
        >>> trunk = nn.Linear(3, 3, bias=False)
        >>> _ = nn.init.eye_(trunk.weight)
        >>> trust = fit_trust({"trunk": trunk}, gallery, queries)
        >>> trust(torch.eye(3)).labels
        [0, 1, 2]
    """
    encoder = encoder_of(models)
    rows = [
        collect_features(encoder, DataLoader(part, batch_size=batch_size), progress=progress)
        for part in (gallery, queries)
    ]
    pairs = [(part.features, part.labels) for part in rows]
    return Trust.fit(pairs[0], pairs[1], encoder=encoder, alpha=alpha)
