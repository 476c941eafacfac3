"""What encoders, their heads and their parts refuse: the error names the argument."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric.encoder import Encoder, SentenceBackbone, train_head, whitening_head
from laplacian_metric.encoder.dropout import Pieces, dropout
from laplacian_metric.encoder.layers import GeM, PixelScaling, batch_norm_statistics
from laplacian_metric.encoder.ready_made import CIFAR10, NDigit
from laplacian_metric.encoder.uncertainty import VarianceHead
from tests.encoder import models
from tests.encoder.dropout_cases import small_encoder
from tests.encoder.test_sentences import Counting

NAN, X, CLASSES = torch.full((4, 2), torch.nan), torch.rand(4, 2), torch.arange(4) % 2
BACKBONE, SMALL = nn.Linear(4, 4), Encoder(nn.Identity(), nn.Linear(2, 2))
SIX = {"example_inputs": torch.randn(2, 6)}


class Returns(nn.Module):
    """A backbone that returns anything."""

    def __init__(self, make: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> object:
        return self.make(x)


class Listing:
    """Not a module, and it gives no tensors."""

    def encode(self, sentences: list[str], convert_to_tensor: bool) -> list[list[float]]:
        return [[float(len(s)), 1.0] for s in sentences]


class LowRank(nn.Linear):
    """A head that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.1 * x[:, :2]


def hooked() -> nn.Linear:
    head = nn.Linear(4, 2)
    head.register_forward_hook(lambda _, __, output: 2 * output)
    return head


def tied() -> nn.Linear:
    head = nn.Linear(4, 4)
    head.weight = nn.Parameter(BACKBONE.weight.T)  # the same memory, another tensor
    return head


def features(make: Callable[[Tensor], object]) -> Tensor:
    return Encoder(Returns(make), nn.Linear(6, 3)).features(torch.randn(4, 6))


def directions(h: list[list[float]]) -> Tensor:
    return Encoder(nn.Identity(), nn.Linear(2, 2, bias=False))(torch.tensor(h))


def trained(h: Tensor = X, labels: Any = CLASSES, **options: Any) -> nn.Linear:
    return train_head(h, labels, ContrastiveLoss(), 3, steps=1, **options)


def sentences(model: Any, given: Any = ("one",), **options: Any) -> Any:
    return SentenceBackbone(model, **options)(given)


name, headed, cut = Encoder.from_name, partial(Encoder.with_head, nn.Identity()), Encoder.from_module
BAD: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any], str]] = [
    # backbones and heads
    (Encoder, (BACKBONE, nn.Conv1d(4, 2, 1)), {}, "Conv1d"),
    (Encoder, (torch.relu, nn.Linear(4, 2)), {}, "backbone"),
    (Encoder, (BACKBONE, nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))), {}, "parametrizations"),
    (Encoder, (BACKBONE, nn.LazyLinear(2)), {}, "shape"),
    (Encoder, (BACKBONE, BACKBONE), {}, "weight, bias"),
    (Encoder, (BACKBONE, tied()), {}, r"\(weight\)"),
    (Encoder, (nn.Identity(), LowRank(4, 2)), {}, "LowRank"),
    (Encoder, (nn.Identity(), hooked()), {}, "hooks"),
    (features, (lambda x: (x, x),), {}, "tuple"),
    (features, (lambda x: x[:, :5],), {}, r"\(4, 5\)"),
    (features, (lambda x: x[:, :, None],), {}, r"\(4, 6, 1\)"),
    (features, (lambda x: x[0],), {}, r"\(6,\)"),
    (features, (lambda x: x[:3],), {}, "3 rows"),
    (features, (lambda x: x.long(),), {}, "int64"),
    (directions, ([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]],), {}, "row 1"),
    (directions, ([[1.0, 0.0], [torch.nan, 0.0]],), {}, r"row 1.*NaN"),
    *((SMALL, (X.to(kind),), {}, "images") for kind in (torch.uint8, torch.int64, torch.bool)),
    # modules that are cut
    (cut, (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()),), {}, "with_head"),
    (cut, (models.small_chain(), "2.1"), {}, r"'2\.1'.*0\.0"),
    (cut, (models.small_chain(), "1.0"), {}, "Dropout"),
    (cut, (models.small_chain(), "0.0"), {}, "Sequential"),
    (cut, (models.small_chain(nn.ReLU()),), {}, "ReLU"),
    (cut, (models.small_chain(nn.ReLU(inplace=True)),), {}, "ReLU"),
    (cut, (models.small_chain(nn.Hardtanh(-5, 5)),), {}, "Hardtanh"),
    (cut, (models.JacobianSequential(nn.Linear(6, 3), nn.ReLU(inplace=True)),), SIX, "output"),
    (cut, (models.small_chain(models.Scaled()),), {}, "Scaled"),
    (cut, (models.small_chain(nn.BatchNorm1d(3)),), {}, "BatchNorm1d"),
    (cut, (models.small_chain(nn.Dropout()),), {}, "Dropout"),
    (cut, (models.Twice(),), SIX, "2 times"),
    (cut, (models.MoreAfter(),), SIX, "'last'"),
    (cut, (models.ByFunction(), "last"), SIX, "did not run"),
    (cut, (models.ByFunction(),), SIX, "ran none"),
    (cut, (models.Attention(),), {}, "out_proj"),
    (cut, (models.TwoOutputs(),), SIX, "tuple"),
    (cut, (nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),), {}, "parameter"),
    (cut, (nn.DataParallel(models.small_chain()),), {}, r"module\.module"),
    (cut, (torch.compile(models.small_chain()),), {}, "_orig_mod"),
    (cut, (nn.Sequential(layer := nn.Linear(4, 4), nn.ReLU(), layer),), {}, "0 = 2"),
    (cut, (models.Shared(),), {}, r"words\.weight"),
    # names
    (name, ("fashion",), {}, "'fashion'; did you mean 'fashion-mnist'?"),
    (name, ("keras:resnet50",), {}, "'keras:resnet50'"),
    (name, ("cifar-10",), {"dim": 1}, "dim is 1"),
    (name, ("cifar-10",), {"pretrained": True}, "'cifar-10'"),
    (name, ("resnet50-gem-v1",), {"pretrained": True}, "'resnet50-gem-v1'"),
    (name, ("cifar-10",), {"depth": 3}, "'depth'"),
    (name, ("cifar-10",), {"pools": 2}, "'pools'"),
    (name, ("torchvision:resnet17",), {}, "'resnet17'"),
    (name, ("timm:resnet17x",), {}, "'resnet17x'"),
    (name, ("torchvision:squeezenet1_0",), {}, "head"),
    (name, ("torchvision:resnet18",), {"pooling": "max"}, "'max'"),
    (name, ("torchvision:alexnet",), {"pooling": "gem", "dim": 4}, "alexnet"),
    (name, ("torchvision:vit_b_32",), {"pooling": "gem", "dim": 4}, "vit_b_32"),
    (name, ("timm:resnet18",), {"pooling": "gem", "global_pool": "catavgmax"}, "timm:resnet18"),
    (name, ("timm:resnet18",), {"pooling": "gem", "global_pool": ""}, "timm:resnet18"),
    (name, ("fashion-mnist",), {"pooling": "gem"}, "'pooling'"),
    # heads on top, whitening, training
    (headed, (5,), {"dim": 3}, "dim is 3"),
    (headed, (5,), {"dim": 7}, "dim is 7"),
    (headed, (5,), {"init": "ones"}, "init"),
    (headed, (0,), {}, "features is 0"),
    (headed, (torch.rand(2, 5, 3),), {}, r"\(2, 5, 3\)"),
    (headed, (torch.ones(2, 5, dtype=torch.long),), {}, r"\(N, H\)"),
    (whitening_head, (torch.ones(5, 3), None), {}, "features"),
    (whitening_head, (torch.ones(1, 3), None), {}, "features"),
    (whitening_head, (torch.rand(5, 3), 4), {}, "dim"),
    (whitening_head, (torch.full((5, 3), torch.nan), None), {}, "NaN"),
    (trained, (), {"labels": CLASSES[:3]}, "labels"),
    (trained, (), {"labels": torch.zeros(4)}, "labels"),
    (trained, (), {"labels": 3}, "labels"),
    (trained, (), {"labels": 0 * CLASSES}, "labels"),
    (trained, (X[:0], CLASSES[:0]), {}, "labels"),
    (trained, (), {"labels": torch.arange(4)}, "labels"),
    (trained, (NAN,), {}, "features"),
    (trained, (X.long(),), {}, "features"),
    (trained, (), {"batch_size": 20}, "batch_size"),
    (trained, (), {"init": nn.Linear(2, 2)}, "init"),
    # parts
    (NDigit, (), {"hidden": -1}, "hidden"),
    (NDigit, (), {"digits": 0}, "digits"),
    (NDigit, (), {"channels": (8,)}, "channels"),
    (CIFAR10, (), {"poolings": 3}, "poolings"),
    (GeM, (0,), {}, "p "),
    (GeM, (), {"eps": 0}, "eps"),
    (GeM(), (torch.ones(2, 3),), {}, "x "),
    (PixelScaling.of_imagenet(), (torch.rand(2, 1, 4, 5),), {}, "images"),
    (batch_norm_statistics, (nn.Sequential(nn.BatchNorm1d(4)), {}, []), {}, "loader"),
    (VarianceHead, (5,), {"hidden": 0, "variance": 1.0}, "hidden is 0"),
    (VarianceHead, (5,), {"hidden": 4, "variance": 0.0}, "variance"),
    (VarianceHead, (5,), {"hidden": 4, "variance": 1e-7}, "variance"),
    (Pieces.of(small_encoder()).begin, ((X, X),), {}, "2 are given"),
    (Pieces.of(small_encoder()).begin, (torch.zeros(1, 2, dtype=torch.uint8),), {}, "floats"),
    *((dropout, (rate,), {}, "rate is") for rate in (-0.1, 1.0, float("nan"))),
    (sentences, (Counting(), "the cat sat"), {}, "sentences"),
    (sentences, (Counting(), torch.zeros(2, 3)), {}, "sentences"),
    (sentences, (nn.Linear(2, 2),), {}, "encode"),
    (sentences, (Listing(),), {"differentiable": True}, "tokenize"),
    (sentences, (Counting(),), {"differentiable": True, "batch_size": 2}, "batch_size"),
    (sentences, (Listing(),), {}, "list"),
]  # fmt: skip


@pytest.mark.parametrize(("use", "arguments", "options", "named"), BAD)
def test_bad_input_is_named(
    use: Callable[..., object], arguments: tuple[Any, ...], options: dict[str, Any], named: str
) -> None:
    library, colon, _ = str(arguments[0]).partition(":") if arguments else ("", "", "")
    if use is name and colon and library in ("timm", "torchvision"):
        pytest.importorskip(library, reason="the extra vision")
    with pytest.raises((ValueError, TypeError), match=named):
        use(*arguments, **options)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"path": "absent.pt"}, FileNotFoundError, "absent"),
        ({"path": ""}, IsADirectoryError, "folder"),
        ({"name": nn.Linear(4, 3), "dim": 3}, TypeError, "dim"),
        ({"name": "cifar-10", "head": "2"}, TypeError, "head"),
        ({"name": "cifar"}, ValueError, "'cifar'"),
        ({"part": "body"}, ValueError, "part"),
    ],
)
def test_checkpoints_that_cannot_be_loaded(
    options: dict[str, Any], error: type[Exception], named: str, tmp_path: Path
) -> None:
    torch.save(nn.Linear(4, 3).state_dict(), tmp_path / "a.pt")
    chosen = {"path": "a.pt", "name": nn.Linear(4, 3), **options}
    with pytest.raises(error, match=named):
        Encoder.from_checkpoint(tmp_path / chosen.pop("path"), **chosen)


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("timm", "vision", lambda: name("timm:resnet18")),
        ("torchvision", "vision", lambda: name("torchvision:resnet18")),
        ("torchvision", "vision", lambda: name("resnet50-gem")),
        ("sentence_transformers", "text", lambda: SentenceBackbone.from_name("all-MiniLM-L6-v2")),
    ],
)
def test_without_the_library_its_extra_is_named(
    package: str, extra: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"laplacian-metric\[{extra}\]"):
        use()
