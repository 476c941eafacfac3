"""`lam serve`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laplacian_metric.cli import common

if TYPE_CHECKING:
    from laplacian_metric.serve.queries import Inputs

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    index: Annotated[
        Path,
        typer.Argument(help="An index's folder, made by index; of items or of a collection in an engine."),
    ],
    model: Annotated[
        Path | None,
        typer.Option(help="The model that the index was built with: images can then be searched for."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="The sentence encoder of the index, by name or folder: texts can then be searched for."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address of the service; 0.0.0.0 lets other machines reach it.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the service; 0 takes a free one.")
    ] = 8000,
    max_body: Annotated[float, typer.Option(min=0.001, help="The largest request, in MiB.")] = 10.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="Longest time for an answer.")] = 30.0,
    watch: Annotated[
        float,
        typer.Option(min=0, help="Seconds between checks whether the index was replaced; 0 never checks."),
    ] = 2.0,
    device: Annotated[str, typer.Option(help="Where the model computes: cpu, cuda, cuda:1, mps.")] = "cpu",
) -> None:
    """Answer queries over HTTP: neighbours with trust, reason and refusal, and a page to try it.

    Only this machine can reach it, unless --host says otherwise; there is no password.

    Example: lam serve photos.index --model model

    Example: lam serve photos.index --port 9000
    """
    import socket

    from laplacian_metric.serve.app import LOOPBACK as NAMES
    from laplacian_metric.serve.app import create_app
    from laplacian_metric.serve.service import Limits, Service

    try:
        import uvicorn
    except ImportError as error:
        raise ImportError('the service needs uvicorn: pip install "laplacian-metric[serve]"') from error

    limits = Limits(body=round(max_body * 2**20), seconds=seconds)
    service = Service(index, _inputs(model, text, device), limits)
    local = host in LOOPBACK
    app = create_app(service, watch=watch, hosts=NAMES if local else ("*",))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
        taken = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        common.show(f"{index}: {len(service.retriever)} items. Open http://{shown}:{taken}/")
        if not local:
            common.warn("warning: other machines can reach this service, which asks for no password")
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
        uvicorn.Server(config).run(sockets=[listening])


def _inputs(model: Path | None, text: str | None, device: str) -> Inputs | None:
    """Return what embeds images and texts; without it torch is not loaded."""
    if model is None and text is None:
        return None
    from laplacian_metric.serve.queries import Inputs

    folder = sentences = None
    if model is not None:
        from laplacian_metric.cli.options import checked_device
        from laplacian_metric.laplace.model_folder import ModelFolder

        folder = ModelFolder.load(model, device=checked_device(device))
    if text is not None:
        from laplacian_metric.encoder.sentences import SentenceBackbone

        sentences = SentenceBackbone.from_name(text).eval()
    return Inputs(folder, sentences)
