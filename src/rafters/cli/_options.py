"""What several verbs ask of their options."""

import math

import typer


def finite(value: float) -> float:
    """Refuses nan and inf, which no bound of an option catches: a loop that waits for either never ends."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value
