"""Any learner without labels: it gets two random views of every image, with the images' numbers as its labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from laplacian_metric import methods
from laplacian_metric.core.batch import Loader, read
from laplacian_metric.core.method import Embedder, FitData, Keep, Learner, Method, Setup
from laplacian_metric.data.views import Augmentation, ImageViews, ViewError, views_of
from laplacian_metric.encoder import Encoder


@dataclass(frozen=True)
class TwoViews(Method):
    """Trains any method on two views of each image; `methods.unlabelled` makes it.

    Attributes:
        method: what learns; the two views of an image are of one class for it, and every image is a class.
        augmentation: makes a view of each input of a batch.
    """

    name: ClassVar[str] = "two-views"
    needs_labels: ClassVar[bool] = False

    method: Method
    augmentation: Augmentation = field(default_factory=ImageViews)

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        if setup.num_classes is not None:
            setup = Setup(setup.loss, setup.num_images, setup.weight_decay, setup.seed, setup.pairs)
        return TwoViewLearner(self.method.learner(encoders, setup), self.augmentation, setup.seed)


@dataclass(frozen=True)
class Unlabelled(Method):
    """The same for configurations: the method by its name, with its options.

    Attributes:
        method: the name of what learns.
        options: its options.
        views: how views are made.

    Example:
        >>> Unlabelled("vmf", {"loss": "elk"}).method
        'vmf'
    """

    name: ClassVar[str] = "unlabelled"
    needs_labels: ClassVar[bool] = False

    method: str = "deterministic"
    options: dict[str, Any] = field(default_factory=dict)
    views: ImageViews = field(default_factory=ImageViews)

    def __post_init__(self) -> None:
        methods.make(self.method, **self.options)

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return TwoViews(methods.make(self.method, **self.options), self.views).learner(encoders, setup)


class TwoViewLearner(Learner):
    """A learner that gets two views of every image and never sees a label.

    Args:
        learner: what is trained.
        augmentation: makes a view of each input of a batch.
        seed: of the views that an embedder is fitted with.
    """

    keep: ClassVar[Keep] = Keep.LAST
    needs_labels: ClassVar[bool] = False

    def __init__(self, learner: Learner, augmentation: Augmentation, seed: int = 0) -> None:
        if isinstance(learner, TwoViewLearner):
            raise ValueError(
                "this method makes two views of each image itself: train it as it is, without unlabelled()"
            )
        if learner.refresh is not None:
            raise ValueError(
                f"{type(learner).__name__} chooses its images by their labels, which two views do not have: take a "
                "method, or a mining, that chooses within a batch"
            )
        super().__init__(learner.module)
        self.learner = learner
        self.augmentation = augmentation
        self.seed = seed
        self.same_draws = learner.same_draws  # type: ignore[misc]
        self.euclidean = learner.euclidean
        self.generator: torch.Generator | None = None  # type: ignore[assignment]

    def begin(self, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
        super().begin(optimizer, generator)
        self.learner.begin(optimizer, generator)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        """The learner's loss of two views of each input; the labels have no part in it."""
        del labels
        both, ids = stacked_views(inputs, self.augmentation, self.generator)
        if len(inputs) < 2:
            raise ViewError(
                f"the batch has {len(inputs)} image, whose views could not be told from those of another: take "
                "batches of at least 2 images"
            )
        return self.learner.loss(both, ids)

    def embedder(self, data: FitData) -> Embedder:
        train, validation = (
            ViewLoader(loader, self.augmentation, self.seed) for loader in (data.train, data.validation)
        )
        return self.learner.embedder(FitData(train, validation, data.folder))

    # --- the rest is the learner's ---

    def parameters(self) -> list[torch.nn.Parameter]:
        return self.learner.parameters()

    def train_mode(self) -> None:
        self.learner.train_mode()

    def step(self) -> None:
        self.learner.step()

    def end_epoch(self) -> None:
        self.learner.end_epoch()

    def points(self, inputs: Any) -> Tensor:
        return self.learner.points(inputs)

    def state(self) -> dict[str, Tensor]:
        return self.learner.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.learner.restore(state)


def stacked_views(
    inputs: Any, augmentation: Augmentation, generator: torch.Generator | None, first: int = 0
) -> tuple[Tensor, Tensor]:
    """Return two views of N inputs one after the other, (2 N, ...), and the numbers of their images, (2 N,).

    Example:
        >>> stacked_views(torch.rand(3, 1, 4, 4), ImageViews(), None, first=7)[1].tolist()
        [7, 8, 9, 7, 8, 9]
    """
    batch = views_of(inputs, augmentation, generator=generator)
    both = torch.cat([batch.inputs, *batch.views])
    return both, torch.arange(first, first + len(batch), device=both.device).repeat(2)


class ViewLoader:
    """Batches (inputs, labels) of two views of the images of a loader, the images' numbers as labels.

    Every pass yields the same views. What a Laplace posterior, or another embedder, is fitted to without labels.

    Args:
        loader: a data set of this library, or what yields batches; labels in it are passed over.
        augmentation: makes a view of each input of a batch.
        seed: of the draws.

    Example:
        >>> loader = ViewLoader([torch.rand(3, 1, 4, 4), torch.rand(2, 1, 4, 4)])
        >>> [labels.tolist() for _, labels in loader]
        [[0, 1, 2, 0, 1, 2], [3, 4, 3, 4]]
    """

    def __init__(self, loader: Loader, augmentation: Augmentation | None = None, seed: int = 0) -> None:
        self.loader = loader
        self.augmentation = ImageViews() if augmentation is None else augmentation
        self.seed = seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generators: dict[torch.device, torch.Generator] = {}
        first = 0
        for batch in read(self.loader):
            device = getattr(batch.inputs, "device", torch.device("cpu"))
            generator = generators.setdefault(device, torch.Generator(device).manual_seed(self.seed))
            yield stacked_views(batch.inputs, self.augmentation, generator, first)
            first += len(batch)
        if first < 2:
            raise ViewError(
                f"there is {first} image: views of one image have no others that they could be told from"
            )
