"""The methods by name, in families: files of one family may import each other, and no other family."""

from __future__ import annotations

from typing import Any

from laplacian_metric.core.method import Method
from laplacian_metric.core.registry import Registry

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
        "triplet-regression": f"{_FAMILIES}.pairs.triplet_regression:TripletRegression",
        "btl": f"{_FAMILIES}.pairs.btl:BTL",
        "softmax": f"{_FAMILIES}.softmax.softmax:Softmax",
        "softmax-ensemble": f"{_FAMILIES}.softmax.softmax:SoftmaxEnsemble",
        "het-xl": f"{_FAMILIES}.softmax.het_xl:HetXL",
        "sngp": f"{_FAMILIES}.softmax.sngp:SNGP",
        "loss-prediction": f"{_FAMILIES}.risk.loss_prediction:LossPrediction",
        "joint-loss-prediction": f"{_FAMILIES}.risk.joint:JointLossPrediction",
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


def register(method: type[Method], *, replace: bool = False) -> type[Method]:
    """Make a method of your own known by its ``name``, so that `make` and cells find it; also as a decorator.

    With ``replace`` it takes the place of another of that name, for example of the one that it extends.

    Example:
        >>> register(find("deterministic"))
        Traceback (most recent call last):
        ...
        ValueError: a method called 'deterministic' is there already: choose another name
    """
    _METHODS.register(method.name, method, replace=replace)
    return method
