"""The encoder: a backbone, a linear head and, usually, the l2 norm."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from hessians.checks import compute_dtype
from laplacian_metric.core.tensor_file import digest


class Encoder(nn.Module):
    """inputs -> backbone -> features h (N, H) -> head -> u (N, Z) -> z = u/|u| (N, Z).

    It holds the modules that it is given, without copying them, and never changes their training mode.

    Args:
        backbone: returns one row of H floats for each image; ``nn.Identity()`` where the inputs are features.
        head: a linear layer, or of a subclass of it that computes the same.
        normalize: whether embeddings are put on the unit sphere.

    Example:
        >>> encoder = Encoder(nn.Flatten(), nn.Linear(12, 3))
        >>> images = torch.rand(5, 3, 2, 2)
        >>> encoder.num_features, encoder.dim, tuple(encoder.features(images).shape)
        (12, 3, (5, 12))
        >>> bool((encoder(images).norm(dim=1) - 1).abs().max() < 1e-6)
        True
    """

    backbone: nn.Module
    head: nn.Linear

    def __init__(self, backbone: nn.Module, head: nn.Linear, normalize: bool = True) -> None:
        super().__init__()
        if not isinstance(backbone, nn.Module):
            raise TypeError(
                f"backbone is a {type(backbone).__name__}, a torch.nn.Module is needed: nn.Identity() for features, "
                "SentenceBackbone(model) for a sentence encoder"
            )
        check_head(head, backbone)
        self.backbone = backbone
        self.head = head
        self.normalize = bool(normalize)
        self.training = backbone.training
        # How to make this architecture again, where it came from a name: what a saved file tells about itself.
        self.recipe: dict[str, Any] | None = None

    # --- ways to one ---

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        head: str | None = None,
        *,
        example_inputs: Any = None,
        normalize: bool = True,
    ) -> Encoder:
        """Cut any module before its head; the parameters are shared with it, and it is left as it was.

        That the module's output is the head's output, or the l2 norm of it, is checked: with ``example_inputs`` at
        once, otherwise by the first inputs that the encoder sees.

        Args:
            module: returns embeddings (N, Z), normalised or not.
            head: the dotted name of the linear layer that makes them. Without it: the last one that ran on
                ``example_inputs``, or else the last one that the module registered.
            example_inputs: a few inputs; a tensor, a tuple of positional or a dictionary of named arguments.
            normalize: whether the encoder normalises, no matter whether the module does.

        Example:
            >>> module = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> encoder = Encoder.from_module(module)
            >>> encoder.head is module[3], len(encoder.backbone)
            (True, 3)
        """
        from laplacian_metric.encoder.from_module import cut_module

        if isinstance(module, Encoder) and head is None:
            return cls(module.backbone, module.head, normalize=normalize)
        return cls(*cut_module(module, head, example_inputs), normalize=normalize)

    @classmethod
    def from_name(
        cls,
        name: str,
        *,
        dim: int | None = None,
        pretrained: bool = False,
        seed: int | None = None,
        normalize: bool = True,
        **options: Any,
    ) -> Encoder:
        """A ready-made encoder: "fashion-mnist", "cifar-10", "resnet50-gem", "timm:NAME" or "torchvision:NAME".

        Photographs go in as RGB floats in [0, 1]: the normalisation that the weights were trained with is the first
        layer of the backbone.

        Args:
            name: one of `encoder_names()`, or a model of timm or torchvision after its library's name and a colon.
            dim: Z. By default what the architecture is known with; the classes for timm's and torchvision's models.
            pretrained: with published weights, which are downloaded. A new head is still random.
            seed: where random weights come from, torch's global generator without it.
            normalize: see the class.
            options: of the network. ``pooling``, "gem" or "average", replaces the last one in networks of timm, of
                torchvision and in our ResNets; all others are passed on to what makes the model of timm or torchvision.

        Example:
            >>> encoder = Encoder.from_name("fashion-mnist", dim=3, seed=0)
            >>> encoder.num_features, encoder.dim
            (9216, 3)
        """
        from laplacian_metric.encoder.zoo import make

        return make(
            name, dim=dim, pretrained=pretrained, seed=seed, normalize=normalize, options=options
        ).encoder

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        name: str | nn.Module | Callable[[], nn.Module] | None = None,
        *,
        prefix: str | None = None,
        part: str = "all",
        head: str | None = None,
        example_inputs: Any = None,
        normalize: bool | None = None,
        **options: Any,
    ) -> Encoder:
        """An encoder with the weights of a file: safetensors, or what torch saved of a state dictionary.

        Nothing is loaded unless all of it fits. A module that is passed gets the weights itself.

        Args:
            path: files that would have to run code to be read (pickled modules, TorchScript) are refused.
            name: what the weights are of: a name as in `from_name`, a module, or what makes one. Not needed for
                what `save_encoder` wrote of an encoder that came from a name.
            prefix: only the entries that begin with it count, without it. A prefix that all share is found.
            part: "backbone" leaves the file's own head out and the encoder's as it was initialised.
            head, example_inputs: as in `from_module`, where ``name`` is a module.
            normalize: by default as the file says, else as the encoder that was passed, else True.
            options: ``dim``, ``seed`` and others that `from_name` takes.
        """
        from laplacian_metric.encoder.checkpoint import load_encoder

        return load_encoder(path, name, prefix, part, head, example_inputs, normalize, options)

    @classmethod
    def with_head(
        cls,
        backbone: nn.Module,
        features: int | Any,
        *,
        dim: int | None = None,
        init: str = "identity",
        seed: int | None = None,
        normalize: bool = True,
    ) -> Encoder:
        """A head on top of a model that has none: a sentence encoder, a descriptor, features from anywhere.

        Args:
            backbone: see the class.
            features: H, or inputs to find it out with.
            dim: Z; H by default.
            init: "identity" leaves the directions of the features as they are, and so has Z = H; "random" is a
                start for training. `train_head` and `whitening_head` make heads for features.
            seed: where a random head comes from.
            normalize: see the class.

        Example:
            >>> encoder = Encoder.with_head(nn.Identity(), 4)
            >>> encoder(torch.tensor([[3.0, 0.0, 4.0, 0.0]])).tolist()
            [[0.6..., 0.0, 0.8..., 0.0]]
        """
        from laplacian_metric.encoder.heads import head_for

        return cls(backbone, head_for(backbone, features, dim=dim, init=init, seed=seed), normalize=normalize)

    # --- what it computes ---

    @property
    def num_features(self) -> int:
        """H, what the backbone gives for each image."""
        return self.head.in_features

    @property
    def takes_features(self) -> bool:
        """Whether the inputs are features already: the backbone is an identity."""
        return isinstance(self.backbone, nn.Identity)

    @property
    def dim(self) -> int:
        """Z, the number of dimensions of the embeddings."""
        return self.head.out_features

    def features(self, *inputs: Any, **named: Any) -> Tensor:
        """What goes into the head, h (N, H).

        Inputs are one tensor, one tuple of the backbone's positional or one dictionary of its named arguments, or
        these arguments themselves. Tensors of whole numbers are refused unless the backbone has an embedding layer.
        """
        args, kwargs = arguments(inputs, named, self.backbone)
        features = self.backbone(*args, **kwargs)
        check_features(features, args, kwargs, self.backbone, self.head)
        return features  # type: ignore[no-any-return]

    def raw(self, *inputs: Any, **named: Any) -> Tensor:
        """The embeddings before the norm, u (N, Z)."""
        return self.head(self.features(*inputs, **named))  # type: ignore[no-any-return]

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The embeddings (N, Z): of unit length if ``normalize``, else raw."""
        u = self.raw(*inputs, **named)
        return unit_rows(u) if self.normalize else u

    def fingerprint(self) -> str:
        """A digest of names, shapes, dtypes and values of all parameters and buffers, and of ``normalize``.

        It depends neither on the device, the training mode nor on what requires a gradient, and is computed anew each
        time. What is no tensor, such as the stride of a convolution, is not in it.

        Example:
            >>> encoder = Encoder.from_name("fashion-mnist", seed=0)
            >>> before = encoder.fingerprint()
            >>> _ = encoder.eval().head.bias.data[0].add_(1e-3)
            >>> len(before), encoder.fingerprint() == before
            (64, False)
        """
        return digest(self, {"normalize": self.normalize})

    def extra_repr(self) -> str:
        return f"normalize={self.normalize}"


def unit_rows(u: Tensor) -> Tensor:
    """z = u/|u|, row by row; rows without a direction are refused, except while a graph is traced."""
    norm: Tensor = torch.linalg.vector_norm(u, dim=1, keepdim=True, dtype=compute_dtype(u))
    if not is_tracing():
        _check_norms(norm.detach()[:, 0])
    unit: Tensor = (u / norm).to(u.dtype)
    return unit


def _check_norms(norm: Tensor) -> None:
    good = (norm >= torch.finfo(norm.dtype).tiny ** 0.5) & (norm < torch.inf)
    try:
        if bool(good.all()):
            return
    except RuntimeError:  # inside vmap, where no value may be looked at
        return
    row = int((~good).nonzero()[0])
    what = "norm zero" if float(norm[row]) < 1 else "NaN or infinite entries"
    raise ValueError(
        f"{int((~good).sum())} of {len(norm)} embeddings have no direction; the first is row {row}, which has {what}: "
        "remove those images, mend the network that made them, or use normalize=False"
    )


# --- checks of what an encoder is made of and is called with ---


def arguments(
    inputs: tuple[Any, ...], named: dict[str, Any], backbone: nn.Module | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the backbone is called with: a single tuple, dictionary or list of tensors is unpacked.

    A single tensor of whole numbers is refused where a backbone has no embedding layer to look them up in.
    """
    if len(inputs) != 1 or named:
        return inputs, named
    (entry,) = inputs
    if isinstance(entry, dict):
        return (), dict(entry)
    if isinstance(entry, tuple | list) and any(isinstance(x, Tensor) for x in entry):
        return tuple(entry), {}
    whole = isinstance(entry, Tensor) and not (entry.is_floating_point() or entry.is_complex())
    modules = [] if backbone is None or not whole else list(backbone.modules())
    if modules and not any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in modules):
        raise TypeError(f"images has dtype {entry.dtype}: convert to floats in [0, 1] first")
    return inputs, named


def is_tracing() -> bool:
    """Whether a graph is being made of what runs, so that nothing may depend on values."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def check_head(head: nn.Module, backbone: nn.Module) -> None:
    """Refuse a head whose weight is not a plain parameter of its own that is multiplied with the features."""
    kind = type(head).__name__
    if not isinstance(head, nn.Linear):
        raise TypeError(
            f"head is a {kind}, a torch.nn.Linear is needed, which the posterior is over: put whatever else there is "
            "into the backbone, or use Encoder.with_head(backbone, example_inputs)"
        )
    if not isinstance(head._parameters.get("weight"), nn.Parameter):
        raise ValueError(
            f"the weight of head ({kind}) is not a parameter but computed from others, as weight_norm and "
            'spectral_norm do: torch.nn.utils.parametrize.remove_parametrizations(head, "weight"), or '
            "torch.nn.utils.remove_weight_norm(head), makes it one"
        )
    if is_lazy(head.weight):
        raise ValueError(f"head ({kind}) has no shape yet: call the model once before")
    own = {
        tensor.untyped_storage().data_ptr()
        for tensor in (head.weight, head.bias)
        if tensor is not None and tensor.numel() and not tensor.is_meta
    }
    names = [
        name
        for name, tensor in backbone.named_parameters()
        if not (is_lazy(tensor) or tensor.is_meta or not tensor.numel())
        and tensor.untyped_storage().data_ptr() in own
    ]
    if names:
        raise ValueError(
            f"head shares its weights with the backbone ({', '.join(names)}): weights drawn from a posterior over the "
            "head would change both. Use Encoder.from_module(model) to cut a model, or give the head a copy: "
            "head.weight = torch.nn.Parameter(head.weight.detach().clone())"
        )
    if type(head).forward is not nn.Linear.forward or head._forward_hooks or head._forward_pre_hooks:
        _check_product(head)


def _check_product(head: nn.Linear) -> None:
    """A layer with a forward pass or hooks of its own may do more than multiply: try it."""
    weight = head.weight
    probe = torch.linspace(-1, 1, 2 * head.in_features, dtype=weight.dtype, device=weight.device)
    probe = probe.reshape(2, head.in_features)
    with torch.no_grad():
        output = head(probe)
        right = F.linear(probe, head.weight, head.bias)
    tolerance = 100 * torch.finfo(weight.dtype).eps * float(right.abs().max() + 1)
    if output.shape != right.shape or not bool(((output - right).abs() <= tolerance).all()):
        raise ValueError(
            f"head ({type(head).__name__}) does not compute weight @ h + bias, as a posterior over its weight assumes: "
            "remove its hooks, or merge what it adds into the weight of a torch.nn.Linear"
        )


def check_features(
    features: Any, args: tuple[Any, ...], kwargs: dict[str, Any], backbone: nn.Module, head: nn.Linear
) -> None:
    """Refuse what is not one row of ``head.in_features`` floats for each image."""
    kind = type(backbone).__name__
    needed = f"the head takes (N, {head.in_features})"
    if not isinstance(features, Tensor):
        raise TypeError(
            f"backbone ({kind}) returns a {type(features).__name__}, {needed} as one tensor: wrap it in a module that "
            "returns that"
        )
    if not features.is_floating_point():
        raise TypeError(f"backbone ({kind}) returns dtype {features.dtype}, floats are needed")
    if features.ndim != 2 or features.shape[1] != head.in_features:
        remedy = " Pool and flatten it first." if features.ndim > 2 else ""
        raise ValueError(f"backbone ({kind}) returns shape {tuple(features.shape)}, {needed}.{remedy}")
    if is_tracing():  # where the number of rows is a symbol, which a comparison would turn into a number
        return
    lengths = {len(x) for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim}
    if lengths and len(features) not in lengths:
        raise ValueError(
            f"backbone ({kind}) returns {len(features)} rows of features for {max(lengths)} inputs: one row for each "
            "is needed"
        )
