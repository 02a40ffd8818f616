"""`rafters env`: what this machine is, and what Rafters can do on it."""

import json as json_text
from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rafters import device as devices
from rafters.cli._machine import abilities, gpu_problem
from rafters.device import DeviceFacts, Environment
from rafters.roofline.ceiling_cache import cached

UNKNOWN = "unknown"


def main(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what this machine is and what Rafters can do on it; first, if a GPU is there that torch cannot use, why."""
    problem = gpu_problem()
    places = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    found = [devices.environment(place) for place in (*places, "cpu")]
    able = abilities()
    if json:
        document: dict[str, Any] = {
            "problem": problem or None,
            "environments": [e.to_json() for e in found],
            "abilities": [asdict(a) for a in able],
        }
        typer.echo(json_text.dumps(document))
        return
    console = Console()
    if problem:
        console.print(f"A GPU cannot be used: {problem}", style="bold red", highlight=False, markup=False, soft_wrap=True)
        console.print()
    for place, environment in zip((*places, "cpu"), found, strict=True):
        console.print(_device_table(place, environment.device))
        console.print()
    console.print(_versions(found[0]), highlight=False, markup=False, soft_wrap=True)
    console.print()
    for ability in able:
        mark = "[green]yes[/]" if ability.able else "[yellow]no [/]"
        detail = f": {escape(ability.detail)}" if ability.detail else ""
        console.print(f"{mark}  {ability.name}{detail}", highlight=False, soft_wrap=True)


def _device_table(place: str, facts: DeviceFacts) -> Table:
    table = Table(title=f"{place}: {facts.name}", title_justify="left", show_header=False, box=None, pad_edge=False)
    gpu = facts.kind == "cuda"
    theoretical = facts.theoretical_bandwidth
    ceilings = cached(place)
    rows = {
        "SMs" if gpu else "threads": str(facts.sm_count),
        "L2" if gpu else "last cache": f"{facts.l2_bytes / 2**20:,.0f} MiB",
        "memory": f"{facts.memory_bytes / 2**30:,.1f} GiB",
        "theoretical": f"{theoretical / 1e9:,.0f} GB/s" if theoretical else UNKNOWN,
        "measured": f"{ceilings.bandwidth(0.5) / 1e9:,.0f} GB/s (copy)" if ceilings else "not yet: rafters roofline",
    }
    if gpu:
        power = f"{facts.power_limit_w:,.0f} W" if facts.power_limit_w else UNKNOWN
        rows |= {"capability": facts.capability or UNKNOWN, "driver": facts.driver or UNKNOWN, "power limit": power}
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _versions(e: Environment) -> str:
    cuda = e.cuda or "none: this is a CPU build"
    return (
        f"rafters {e.rafters or 'from source'} · Python {e.python} · torch {e.torch} · CUDA {cuda} · triton {e.triton or 'none'}"
    )
