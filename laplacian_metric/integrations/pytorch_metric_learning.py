"""pytorch-metric-learning: its testers with a posterior and its uncertainties, its trainers with our losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hessians import Pairs
from hessians.pair_loss import PairLoss
from laplacian_metric.embedding import StochasticEmbedding
from laplacian_metric.encoder import Encoder
from laplacian_metric.integrations.optional import base_class
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.metrics.calibration import NUM_BINS, consensus
from laplacian_metric.metrics.positives import Positives
from laplacian_metric.metrics.statistics import area, auroc, rank_calibration_gap, sparsification_curve
from laplacian_metric.metrics.uncertainty import check_uncertainty

INSTALL = "pytorch-metric-learning>=2.6"
FROM_UNCERTAINTY = ("r_auroc", "ausc", "ece_at_1")
FROM_SAMPLES = ("ece",)

_Calculator: Any = base_class(
    "pytorch_metric_learning.utils.accuracy_calculator", "AccuracyCalculator", INSTALL
)
_Tester: Any = base_class("pytorch_metric_learning.testers", "GlobalEmbeddingSpaceTester", INSTALL)


@dataclass(frozen=True)
class Beside:
    """What is known of queries (Q, Z) beside their points: uncertainties (Q,), joint samples (S, Q, Z), (S, M, Z)."""

    uncertainty: Tensor | None = None
    samples: Tensor | None = None
    reference_samples: Tensor | None = None


class UncertaintyCalculator(_Calculator):
    """An AccuracyCalculator that also says what an uncertainty is worth.

    ``r_auroc``, ``ausc`` and ``ece_at_1`` need the queries' uncertainty, ``ece`` needs joint samples of a posterior.
    Where these are not given the metrics are left out, and naming them in ``include`` is an error. Whether a nearest
    neighbour is right is decided by the library's own search and label comparison, so that they are about the
    same errors as ``precision_at_1``; ``ece`` searches in every sample. Per class, they are those of the
    class's queries; ``avg_of_avgs`` averages over the classes in which they are defined.

    Args:
        include, exclude, avg_of_avgs, return_per_class, k: as in AccuracyCalculator; ``k`` is "max_bin_count" by
            default, which is as deep as its metrics need.
        options: its others.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> labels = torch.tensor([0, 0, 1, 0])
        >>> calculator = UncertaintyCalculator(include=("r_auroc",), device=torch.device("cpu"))
        >>> calculator.get_accuracy(z, labels, uncertainty=torch.tensor([0.1, 0.2, 0.3, 0.4]))
        {'r_auroc': 1.0}
    """

    def __init__(
        self,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        avg_of_avgs: bool = False,
        return_per_class: bool = False,
        k: int | str | None = "max_bin_count",
        **options: Any,
    ) -> None:
        super().__init__(tuple(include), tuple(exclude), avg_of_avgs, return_per_class, k, **options)
        self._asked = frozenset(include)
        self._beside = Beside()

    def requires_knn(self) -> list[str]:
        return [*super().requires_knn(), *FROM_UNCERTAINTY]

    @contextmanager
    def beside(self, beside: Beside) -> Iterator[None]:
        """For callers that pass embeddings only, as testers do: what belongs to the queries of the calls inside."""
        before, self._beside = self._beside, beside
        try:
            yield
        finally:
            self._beside = before

    def get_accuracy(
        self,
        query: Any,
        query_labels: Any,
        reference: Any = None,
        reference_labels: Any = None,
        ref_includes_query: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        *,
        uncertainty: Tensor | None = None,
        samples: Tensor | None = None,
        reference_samples: Tensor | None = None,
    ) -> dict[str, Any]:
        """As in AccuracyCalculator, with what is known beside the queries; see `Beside`.

        ``reference_samples`` are drawn with the same weights as ``samples``; not needed where there is no reference
        or it is the queries themselves.
        """
        nothing = uncertainty is None and samples is None and reference_samples is None
        known = self._beside if nothing else Beside(uncertainty, samples, reference_samples)
        count = len(query)
        own = reference is None or (ref_includes_query and len(reference) == count)
        known = _checked(known, count, None if own else len(reference))
        missing = list(FROM_UNCERTAINTY) if known.uncertainty is None else []
        if known.samples is None:
            missing += FROM_SAMPLES
        wanted = sorted((frozenset(include) or self._asked) & frozenset(missing))
        if wanted:
            what = "samples=" if wanted == [*FROM_SAMPLES] else "uncertainty="
            raise ValueError(
                f"{', '.join(wanted)} cannot be computed from embeddings alone: pass {what} to get_accuracy, or test "
                "with a LAMTester"
            )
        with self.beside(known):
            return super().get_accuracy(  # type: ignore[no-any-return]
                query,
                query_labels,
                reference,
                reference_labels,
                ref_includes_query,
                include,
                (*exclude, *missing),
            )

    # --- the metrics; the library finds them by their names ---

    def calculate_r_auroc(self, **found: Any) -> Any:
        return self._of_errors(lambda u, right: auroc(u, 1 - right, torch.ones_like(right)), **found)

    def calculate_ausc(self, **found: Any) -> Any:
        return self._of_errors(
            lambda u, right: area(sparsification_curve(u, right, torch.ones_like(right))), **found
        )

    def calculate_ece_at_1(self, **found: Any) -> Any:
        return self._of_errors(
            lambda u, right: rank_calibration_gap(u, right, torch.ones_like(right), NUM_BINS), **found
        )

    def calculate_ece(
        self,
        query_labels: Tensor,
        reference_labels: Tensor,
        ref_includes_query: bool,
        **_: Any,
    ) -> Any:
        if query_labels.ndim != 1 or self.label_comparison_fn is not torch.eq:
            raise ValueError(
                'ece is of classes: neighbours vote for one. Exclude it where labels are compared: exclude=("ece",)'
            )
        samples, others = self._beside.samples, self._beside.reference_samples
        assert samples is not None
        labels, reference = query_labels.cpu().long(), reference_labels.cpu().long()
        own = ref_includes_query and len(reference) == len(labels)
        if ref_includes_query and not own:
            # The queries come first in the reference, and each must leave out itself.
            assert others is not None
            agreed = consensus(others, reference)
            first = agreed.answerable.nonzero().flatten() < len(labels)
            answerable = agreed.answerable[: len(labels)]
        else:
            if not bool((Positives.from_labels(labels, None if own else reference).counts > 0).any()):
                return self._undefined(labels)
            agreed = consensus(
                samples,
                labels,
                database=None if own else others,
                database_labels=None if own else reference,
            )
            first, answerable = torch.ones_like(agreed.votes, dtype=torch.bool), agreed.answerable

        def error(rows: Tensor) -> float:
            kept = {name: getattr(agreed, name)[first][rows] for name in ("prediction", "votes", "right")}
            return dataclasses.replace(agreed, **kept).error

        return self._averaged(error, labels[answerable.cpu()])

    def _of_errors(
        self,
        metric: Callable[[Tensor, Tensor], Tensor],
        *,
        knn_labels: Tensor,
        query_labels: Tensor,
        not_lone_query_mask: Tensor,
        **_: Any,
    ) -> Any:
        """A metric of the uncertainties (A,) and of whether the nearest neighbour is right, of answerable queries."""
        if not bool(not_lone_query_mask.any()):
            return self._undefined(query_labels)
        assert self._beside.uncertainty is not None
        labels = query_labels[not_lone_query_mask]
        right = self.label_comparison_fn(labels[:, None], knn_labels[not_lone_query_mask][:, :1])
        right = right.reshape(len(labels)).double()
        uncertainty = self._beside.uncertainty.to(right.device)[not_lone_query_mask]
        return self._averaged(lambda rows: float(metric(uncertainty[rows], right[rows])), labels)

    def _averaged(self, metric: Callable[[Tensor], float], labels: Tensor) -> Any:
        """Over all queries, or class by class, as the calculator was asked to."""
        if not (self.avg_of_avgs or self.return_per_class):
            return metric(torch.ones(len(labels), dtype=torch.bool, device=labels.device))
        classes = [(labels == one).reshape(len(labels), -1).all(1) for one in torch.unique(labels, dim=0)]
        values = [metric(rows) for rows in classes]
        return values if self.return_per_class else float(torch.tensor(values).double().nanmean())

    def _undefined(self, labels: Tensor) -> Any:
        nan = float("nan")
        return [nan] * len(torch.unique(labels, dim=0)) if self.return_per_class else nan


def _checked(known: Beside, queries: int, references: int | None) -> Beside:
    """Refuse what does not fit Q queries and M references (None: the queries themselves)."""
    uncertainty = known.uncertainty
    if uncertainty is not None:
        uncertainty = check_uncertainty("uncertainty", uncertainty, queries)
    if known.samples is None:
        return Beside(uncertainty)
    if references is not None and known.reference_samples is None:
        raise ValueError(
            "samples is given without reference_samples: the reference has to be sampled with the same weights"
        )
    for name, number in (("samples", queries), ("reference_samples", references)):
        drawn = getattr(known, name)
        if drawn is not None and number is not None and (drawn.ndim != 3 or drawn.shape[1] != number):
            raise ValueError(f"{name} has shape {tuple(drawn.shape)}, (S, {number}, Z) is needed")
    return Beside(uncertainty, known.samples, known.reference_samples)


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
        given = {id(p) for model in (trunk, embedder) if model is not None for p in model.parameters()}
        if not {id(p) for p in self.lam.encoder.parameters()} <= given:
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
        found: dict[str, Any] = {}
        for split in splits:
            self._parts = []
            found |= super().get_all_embeddings_for_all_splits(
                dataset_dict, trunk_model, embedder_model, [split], collate_fn
            )
            self.embedded[split], self._parts = StochasticEmbedding.cat(self._parts), []
        return found

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
