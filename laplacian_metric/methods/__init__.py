"""The methods by name, in families: files of one family may import each other, and no other family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laplacian_metric.core.method import Method
from laplacian_metric.core.registry import Registry

if TYPE_CHECKING:
    from laplacian_metric.data.views import Augmentation

_FAMILIES = "laplacian_metric.methods"
_METHODS: Registry[Method] = Registry(
    "method",
    {
        "deterministic": f"{_FAMILIES}.pairs.deterministic:Deterministic",
        "ensemble": f"{_FAMILIES}.sampling.ensemble:Ensemble",
        "mc-dropout": f"{_FAMILIES}.sampling.mc_dropout:MCDropout",
        "pfe": f"{_FAMILIES}.gaussian.pfe:PFE",
        "soft-contrastive": f"{_FAMILIES}.gaussian.soft_contrastive:SoftContrastive",
        "hib": f"{_FAMILIES}.gaussian.hib:HIB",
        "swag": f"{_FAMILIES}.sampling.swag:SWAG",
        "vmf": f"{_FAMILIES}.spherical.vmf_head:VMFHead",
        "proxies": f"{_FAMILIES}.spherical.proxies:Proxies",
        "laplace": f"{_FAMILIES}.laplace.laplace:Laplace",
        "online-laplace": f"{_FAMILIES}.laplace.online:OnlineLaplace",
        "triplet": f"{_FAMILIES}.pairs.triplet:Triplet",
        "triplet-regression": f"{_FAMILIES}.pairs.triplet:TripletRegression",
        "btl": f"{_FAMILIES}.pairs.btl:BTL",
        "loss-prediction": f"{_FAMILIES}.risk.loss_prediction:LossPrediction",
        "joint-loss-prediction": f"{_FAMILIES}.risk.joint:JointLossPrediction",
        "unlabelled": f"{_FAMILIES}.self_supervised.two_views:Unlabelled",
        "nt-xent": f"{_FAMILIES}.self_supervised.instances:NTXent",
        "isif": f"{_FAMILIES}.self_supervised.instances:ISIF",
        "umm": f"{_FAMILIES}.self_supervised.umm:UMM",
    },
)


def names() -> tuple[str, ...]:
    """The names of all methods.

    Example:
        >>> "pfe" in names()
        True
    """
    return _METHODS.names()


def find(name: str) -> type[Method]:
    """The class of a method.

    Example:
        >>> find("deterministic").name
        'deterministic'
        >>> find("emsemble")
        Traceback (most recent call last):
        ...
        ValueError: no method is called 'emsemble'; did you mean 'ensemble'? there are: deterministic, ...
    """
    return _METHODS.find(name)


def make(name: str, **options: Any) -> Method:
    """A method with its options.

    Example:
        >>> make("deterministic")
        Deterministic()
    """
    return _METHODS.make(name, **options)


def unlabelled(method: Method | str, augmentation: Augmentation | None = None) -> Method:
    """Return a method that trains another one without labels, on two random views of each image.

    The views of an image are a positive pair for it, and those of other images are negatives. Whatever labels the
    training images have, the weights are the same to the bit, and a training can be resumed in the middle of an epoch.

    Args:
        method: a method, or its name, such as "deterministic", "vmf", "hib" or "online-laplace".
        augmentation: (inputs, generator) -> one random view of each input; `data.views.ImageViews` by default.

    Example:
        >>> unlabelled("vmf").method.name
        'vmf'
    """
    from laplacian_metric.data.views import ImageViews
    from laplacian_metric.methods.self_supervised.two_views import TwoViews

    wrapped = make(method) if isinstance(method, str) else method
    return TwoViews(wrapped, ImageViews() if augmentation is None else augmentation)


def register(method: type[Method], *, replace: bool = False) -> type[Method]:
    """Make a method of your own known by its ``name``, so that `make` and cells find it; also as a decorator.

    With ``replace`` it takes the place of another of that name, for example of the one that it extends.

    Example:
        >>> register(find("deterministic"))
        Traceback (most recent call last):
        ...
        ValueError: there is another method called 'deterministic': choose another name
    """
    _METHODS.register(method.name, method, replace=replace)
    return method
