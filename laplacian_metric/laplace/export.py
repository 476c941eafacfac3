"""A fitted LAM as a graph that runs without this library: encoder, mean direction and concentration.

Structure "diag" only. ONNX has no log1p, expm1 and erfc; written as log(1 + x), e^x - 1 and 1 - erf(x), they would
leave a concentration of 1e6 with one digit. The ONNX graph gets forms of them that keep all digits of float32.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.modes import evaluating
from laplacian_metric.laplace.layer import Structure
from laplacian_metric.vmf import projected_normal
from laplacian_metric.vmf.angle import gauss_legendre
from laplacian_metric.vmf.fitting import unit_direction

if TYPE_CHECKING:
    from laplacian_metric.laplace.posthoc import LAM

OUTPUTS = ("point", "mean", "kappa", "features")
ONNX_LIMIT = 2**31 - 2**20  # bytes of one file, of which a megabyte is left to the graph
TAIL_NODES = 24


class ExportableLAM(nn.Module):
    """images -> (point (N, Z), mean (N, Z), kappa (N,)), as `LAM.embed` computes them, from traceable operations.

    With ``features`` the features h (N, H) come last: a saved `Trust` takes them, with numpy alone. The calibration and
    the gallery are no part of the graph.

    Nothing depends on values, so that nothing is checked either: NaN goes through, and an image whose embedding before
    the norm is exactly 0, which `LAM.embed` refuses, gets the first axis as its point and mean, and kappa 0. It shares
    the encoder with the LAM, and keeps the posterior that the LAM had when it was made.

    Args:
        lam: fitted, with structure "diag".
        features: whether they are returned too.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> from laplacian_metric.encoder import Encoder
        >>> from laplacian_metric.laplace.posthoc import LAM
        >>> encoder = Encoder(nn.Identity(), nn.Linear(4, 3))
        >>> features, labels = torch.randn(40, 4), torch.arange(40) % 4
        >>> lam = LAM(encoder, ContrastiveLoss()).fit_features(features, labels, check_mode=False)
        >>> point, mean, kappa = ExportableLAM(lam)(features)
        >>> point.shape, mean.shape, kappa.shape
        (torch.Size([40, 3]), torch.Size([40, 3]), torch.Size([40]))
    """

    weight: Tensor
    bias: Tensor | None
    weight_variance: Tensor
    bias_variance: Tensor | None

    def __init__(self, lam: LAM, *, features: bool = False) -> None:
        super().__init__()
        self.returns_features = features
        if lam.structure is not Structure.DIAGONAL:
            raise ValueError(
                f'structure is "{lam.structure.value}", only "diag" can be exported: fit a LAM with structure="diag" '
                "to the same features"
            )
        head = lam.head
        variance = head.posterior.marginal_variance().to(head.weight.dtype)
        self.encoder = lam.encoder
        self.training = lam.encoder.training
        self.register_buffer("weight", head.weight.clone())
        self.register_buffer("bias", None if head.bias is None else head.bias.clone())
        self.register_buffer("weight_variance", variance[:, : head.num_features].clone())
        self.register_buffer("bias_variance", variance[:, -1].clone() if head.bias_is_random else None)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the point, the mean direction and the concentration of every image, and its features if wanted."""
        h = self.encoder.features(images).to(self.weight.dtype)
        u = F.linear(h, self.weight, self.bias)
        variance = F.linear(h.square(), self.weight_variance, self.bias_variance)
        direction = projected_normal(u, variance)
        point = unit_direction(u, u.abs().amax(1) > 0)
        embedded = (point, direction.mean, direction.kappa)
        return (*embedded, h) if self.returns_features else embedded


def export_program(
    lam: LAM, example_images: Tensor, *, features: bool = False
) -> torch.export.ExportedProgram:
    """The graph of an `ExportableLAM` in evaluation mode, for any number of images.

    Its graph evaluates all nodes of the integral at once: its memory is some hundred times N Z numbers.

    Args:
        lam: fitted, with structure "diag".
        example_images: one or more, of the shape and dtype that the graph is to take.
        features: whether the graph returns them too, as `Trust` needs them.

    Returns:
        what ``torch.export.save`` stores and whose ``module()`` is called with images.
    """
    images = _examples(lam, example_images)
    module = ExportableLAM(lam, features=features)
    batch = torch.export.Dim("batch")
    with evaluating(module):
        return torch.export.export(module, (images,), dynamic_shapes=({0: batch},))


def export_onnx(
    lam: LAM, path: str | os.PathLike[str], example_images: Tensor, *, features: bool = False
) -> None:
    """Write one ONNX file with the input "images" and the outputs "point", "mean" and "kappa": whole, or not at all.

    With ``features`` the last output is "features".

    Args:
        lam: fitted, with structure "diag".
        path: of the file.
        example_images: as in `export_program`.
        features: likewise.
    """
    accurate = _translations()
    program = export_program(lam, example_images, features=features)
    size = sum(
        tensor.numel() * tensor.element_size()
        for tensor in chain(program.state_dict.values(), program.constants.values())
        if isinstance(tensor, Tensor)
    )
    if size > ONNX_LIMIT:
        raise ValueError(
            f"the weights take {size / 2**30:.1f} GiB, an ONNX file holds less than 2: use export_program"
        )
    exported = torch.onnx.export(
        program,
        dynamo=True,
        input_names=["images"],
        output_names=list(OUTPUTS if features else OUTPUTS[:-1]),
        dynamic_shapes={"images": {0: "batch"}},
        custom_translation_table=accurate,
        external_data=False,
        verbose=False,
    )
    if exported is None:
        raise RuntimeError("torch.onnx.export returned nothing: update torch")
    _describe(exported.model, lam)
    with atomic_write(path) as temporary:
        exported.save(temporary, external_data=False)


def _describe(model: Any, lam: LAM) -> None:
    """Say what the graph is of, and leave out the stack traces, which have folders of this machine in them."""
    from onnxscript import ir

    from laplacian_metric import __version__

    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props.clear()
    model.metadata_props["laplacian_metric.version"] = __version__
    model.metadata_props["laplacian_metric.encoder"] = lam._fit().fingerprint


def _examples(lam: LAM, images: Tensor) -> Tensor:
    """At least two images, on the encoder's device: of a single one it would be taken that there is never another."""
    if not isinstance(images, Tensor):
        raise TypeError(
            f"example_images is a {type(images).__name__}, one tensor of images (N, ...) is needed: encoders of "
            "several inputs cannot be exported"
        )
    if not images.ndim or not images.shape[0]:
        raise ValueError(f"example_images has shape {tuple(images.shape)}, at least one image is needed")
    images = images.detach().to(lam.encoder.head.weight.device)
    return images if images.shape[0] > 1 else torch.cat([images, images])


def _translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """expm1, log1p and erfc with all their digits, in operations that ONNX has."""
    try:
        import onnx
        import onnxscript
    except ImportError as error:
        raise ImportError(
            f"{error.name or 'onnx'} is needed to export to ONNX: pip install 'laplacian-metric[export]'"
        ) from error

    op: Any = onnxscript.opset18

    def like(x: Any, value: float) -> Any:
        return op.CastLike(op.Constant(value_float=value), x)

    def choose(x: Any, less: Any, ratio: Any, far: Any) -> Any:
        """x itself where rounding left nothing of it (``less`` is 0), the ratio around 0, and ``far`` beyond."""
        near = op.Where(op.Equal(less, like(x, 0.0)), x, ratio)
        return op.Where(op.Less(op.Abs(x), like(x, 0.5)), near, far)

    def expm1(x: Any) -> Any:
        """(u - 1) x / log u with u = e^x: what the rounding of u loses cancels."""
        u = op.Exp(x)
        less = op.Sub(u, like(x, 1.0))
        return choose(x, less, op.Div(op.Mul(less, x), op.Log(u)), less)

    def log1p(x: Any) -> Any:
        """log(u) x / (u - 1) with u = 1 + x."""
        u = op.Add(x, like(x, 1.0))
        less, log = op.Sub(u, like(x, 1.0)), op.Log(u)
        return choose(x, less, op.Div(op.Mul(log, x), less), log)

    def erfc(x: Any) -> Any:
        """From 1 on the integral of exp(-x^2/sin^2 t) over t from 0 to pi/2, times 2/pi; 1 - erf(x) below.

        With seven digits: what runs the graph may know erf in float32 only.
        """
        points, weights = gauss_legendre(TAIL_NODES)
        slopes = [-1 / math.sin(math.pi / 2 * t) ** 2 for t in points]
        square = op.Unsqueeze(op.Mul(x, x), [-1])
        heights = op.Exp(op.Mul(square, op.CastLike(op.Constant(value_floats=slopes), x)))
        # A matrix with one column: onnxruntime has no product with a vector for an empty batch.
        column = op.Unsqueeze(op.CastLike(op.Constant(value_floats=weights), x), [-1])
        tail = op.Squeeze(op.MatMul(heights, column), [-1])
        one = like(x, 1.0)
        body = op.Sub(one, op.CastLike(op.Erf(op.Cast(x, to=onnx.TensorProto.FLOAT)), x))
        return op.Where(op.Less(x, one), body, tail)

    aten = torch.ops.aten
    return {aten.expm1.default: expm1, aten.log1p.default: log1p, aten.erfc.default: erfc}
