"""The contrastive loss with the errors of the code that was published with the LAM paper, each of them a switch.

It is there to be measured beside `hessians.ContrastiveLoss`, and not to be used for anything else;
docs/published_code.md says what each error is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hessians import ContrastiveLoss, Pairs
from hessians.approximations import Approximation
from hessians.contrastive import Distance, Negatives
from hessians.graph import DenseGraph, EdgeGraph, Edges, PairGraph, PositiveGraph, RowGraph
from hessians.output_hessian import OutputHessian, StructuredHessian
from hessians.pair_loss import PairBlocks


@dataclass(frozen=True)
class PublishedContrastiveLoss(ContrastiveLoss):
    r"""As published: trained is one function, curved another, and that one with a wrong sign.

    With every switch off, and the same ``negatives``, it is `hessians.ContrastiveLoss`. What is called the graph of the
    loss, and with it the value and the gradient in a posterior's diagnostics, stays that of the squared loss with its
    margin: the function that the curvature is meant for.

    Args:
        negatives: "active" by default, since the published training averages over the non-zero terms.
        flip_cross: whether the blocks H_ij of two images have the wrong sign with the Arccos distance, so that "full"
            and "positive" (and "clipped", which the published code does not have) are wrong by twice the cross term.
            The Euclidean distance is right, and so is "fixed".
        curve_inactive: whether negatives beyond the margin stay in the curvature, to which they contribute nothing.
        unsquared: whether the value is that of ``power=1``, of the distance as it is. The curvature is that of d^2/2
            all the same.

    Example:
        >>> import torch
        >>> u = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> pairs = Pairs.from_labels([0, 0, 1])
        >>> round(PublishedContrastiveLoss(margin=1.0)(u, pairs).item(), 2)  # sqrt(2), and 1 - 0 of one active negative
        2.41
        >>> corrected = dict(flip_cross=False, curve_inactive=False, unsquared=False, negatives="all")
        >>> round(PublishedContrastiveLoss(margin=1.0, **corrected)(u, pairs).item(), 4)
        1.25
    """

    negatives: Negatives | str = Negatives.ACTIVE
    flip_cross: bool = True
    curve_inactive: bool = True
    unsquared: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.power != 2:
            raise ValueError(
                f"power is {self.power}: the published loss is curved as squared, use unsquared=True"
            )

    # --- what is trained ---

    def pair_values(self, first: Tensor, second: Tensor, positive: bool) -> Tensor:
        return self._trained().pair_values(first, second, positive)

    def value_of_points(self, points: Tensor, pairs: Pairs) -> Tensor:
        return self._trained().value_of_points(points, pairs)

    def gradient(self, u: Tensor, pairs: Pairs) -> Tensor:
        """d loss / du, (N, Z), with the weights of the population (``negatives`` plays no part)."""
        return self._trained().gradient(u, pairs)

    def _trained(self) -> ContrastiveLoss:
        """The loss whose value is taken."""
        power = 1 if self.unsquared else 2
        return ContrastiveLoss(
            self.margin, self.distance, self.negative_weight, self.normalize, self.negatives, power
        )

    # --- what is curved ---

    def pair_blocks(self, first: Tensor, second: Tensor, positive: bool) -> PairBlocks:
        """Of d^2/2, whatever the value is; with this margin, unless inactive negatives are curved."""
        blocks = self._curved().pair_blocks(first, second, positive)
        return blocks._replace(cross=-blocks.cross) if self._flips() else blocks

    def output_hessian(
        self, u: Tensor, pairs: Pairs, approximation: str | Approximation = Approximation.FULL
    ) -> OutputHessian:
        approximation = Approximation.parse(approximation)
        clipped = approximation is Approximation.CLIPPED
        whole = clipped and self._flips()
        hessian: OutputHessian = self._curved().output_hessian(
            u, pairs, Approximation.FULL if whole else approximation
        )
        if not self._flips():
            return hessian
        if isinstance(hessian, StructuredHessian) and hessian.graph is not None:
            # What couples two images, H_ij, is all in the graph.
            graph = _negated(hessian.graph)
            hessian = StructuredHessian(
                hessian.unit, hessian.inverse_norm, hessian.nodes, graph, hessian.radial, hessian.dim
            )
        return hessian.positive_part() if whole else hessian

    def _flips(self) -> bool:
        return self.flip_cross and self.distance is Distance.ARCCOS

    def _curved(self) -> ContrastiveLoss:
        """The squared loss whose curvature is taken; with an infinite margin every negative is active."""
        margin = math.inf if self.curve_inactive else self.margin
        return ContrastiveLoss(margin, self.distance, self.negative_weight, self.normalize)


def _negated(graph: PairGraph) -> PairGraph:
    """-Y, as a store of the same kind, since what follows chooses its algorithm by that."""
    if isinstance(graph, DenseGraph):
        return DenseGraph(-graph.matrix)
    if isinstance(graph, EdgeGraph):
        first, second, weight = graph.list
        return EdgeGraph(Edges(first, second, -weight), graph.num_images)
    if isinstance(graph, RowGraph):
        rows = graph.rows
        return RowGraph(lambda start, stop: -rows(start, stop), graph.num_images)
    if isinstance(graph, PositiveGraph):
        return PositiveGraph(graph.pairs, -graph.weight, graph.dtype)
    raise TypeError(f"there is no negative of a graph of type {type(graph).__name__}")
