"""The command line: one file a verb, loaded when the verb is called.

A verb's file defines `main`, a function with typer's annotations, and is listed in `VERBS`. What it raises as a `RaftersError`
becomes one line on stderr and exit status 1; anything else is a bug and keeps its traceback.
"""

import importlib
from importlib.util import find_spec
from typing import Annotated

import typer

from rafters._version import __version__
from rafters.errors import RaftersError

VERBS = {
    "env": "What this machine is, and what Rafters can do on it.",
    "roofline": "Measure the ceilings of this device.",
    "bench": "Check ops, time them, and place them on the roofline.",
    "sweep": "Block sizes, masks and alignment of one op: what each costs.",
    "inspect": "Compile every variant of an op for a target, with no GPU, and say what is in it.",
    "check": "Does an op keep every promise? Values, memory, gradients, kernels.",
    "compare": "Two results side by side: what changed, and whether it is more than noise.",
    "report": "Draw a result: charts and tables in one file.",
    "measure": "Place any callable on the roofline.",
    "new": "Write a starter file for an op of your own.",
}

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rafters {__version__}")
        raise typer.Exit


@app.callback()
def _rafters(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """PyTorch operators on the roofline."""


def add_verb(to: typer.Typer, name: str, line: str) -> None:
    """Adds a command that loads the verb's file and hands its arguments on: a broken verb breaks no other, nor the help."""

    # The verb parses its own options, `--help` among them: what follows its name is passed on as it stands.
    as_it_stands = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

    @to.command(name, help=line, context_settings=as_it_stands, add_help_option=False)
    def call(context: typer.Context) -> None:
        verb = typer.Typer(add_completion=False)
        try:
            verb.command(name)(importlib.import_module(f"rafters.cli.{name}").main)
            typer.main.get_command(verb)(args=context.args, prog_name=f"rafters {name}")
        except RaftersError as error:
            typer.echo(f"rafters {name}: {error}", err=True)
            raise typer.Exit(1) from None


for _name, _line in VERBS.items():
    if find_spec(f"rafters.cli.{_name}"):
        add_verb(app, _name, _line)
