"""`lam serve`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from laplacian_metric.cli import common, options

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    index: Annotated[Path, typer.Argument(help="The folder of an index, or of a saved Trust.")],
    model: options.QueryModel = None,
    sentences: options.Sentences = None,
    gallery: options.Address = None,
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
    device: options.Device = "cpu",
) -> None:
    """Answer queries over HTTP: the nearest item, the probability that it is right, a verdict; and a page.

    Only this machine can reach it, unless --host says otherwise; there is no password.

    Example: lam serve photos.index --model model
    """
    import socket

    from laplacian_metric.serve import app, queries, service

    try:
        import uvicorn
    except ImportError as error:
        raise ImportError('the service needs uvicorn: pip install ".[serve]"') from error

    inputs = queries.load_inputs(model, sentences, device)
    limits = service.Limits(body=round(max_body * 2**20), seconds=seconds)
    opened = service.Service(index, inputs, limits, gallery)
    local = host in LOOPBACK
    served = app.create_app(opened, watch=watch, hosts=app.LOOPBACK if local else ("*",))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
        shown = f"[{host}]" if ":" in host else host
        common.show(f"{index}: {len(opened.index)} items. Open http://{shown}:{listening.getsockname()[1]}/")
        if not local:
            common.warn("warning: other machines can reach this service, which asks for no password")
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        config = uvicorn.Config(served, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
        uvicorn.Server(config).run(sockets=[listening])
