"""The command line's door: what every verb can rely on."""

import sys
import types
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import rafters
from rafters import cli
from rafters.errors import RaftersError


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """The app with one more verb, `probe`."""

    def main(ops: list[str], json: Annotated[bool, typer.Option("--json")] = False, fail: str = "", status: int = 0) -> None:
        """What the verb says of itself."""
        typer.echo(f"{ops} {json}")
        if fail:
            raise RaftersError(fail)
        if status:
            raise typer.Exit(status)

    verb = types.ModuleType("rafters.cli.probe")
    verb.main = main
    monkeypatch.setitem(sys.modules, "rafters.cli.probe", verb)
    app = typer.Typer(callback=cli.app.registered_callback.callback, no_args_is_help=True)
    cli.add_verb(app, "probe", "One line.")
    cli.add_verb(app, "broken", "A verb whose file does not load.")
    return lambda *args: CliRunner().invoke(app, args)


def test_version(run) -> None:
    assert run("--version").output == f"rafters {rafters.__version__}\n"


def test_help_loads_no_verb(run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "One line." in result.output


def test_a_verb_parses_its_own_arguments(run) -> None:
    assert run("probe", "add", "--json", "mul").output == "['add', 'mul'] True\n"
    assert run("probe", "add", "--", "--json").output == "['add', '--json'] False\n"
    assert "What the verb says of itself." in run("probe", "--help").output


def test_a_refusal_is_one_line_and_status_1(run) -> None:
    result = run("probe", "add", "--fail", "add: argument 'x': got 3, wanted 4")
    assert result.exit_code == 1
    assert result.stderr == "rafters probe: add: argument 'x': got 3, wanted 4\n"


def test_a_verb_sets_the_exit_status(run) -> None:
    assert run("probe", "add", "--status", "3").exit_code == 3


def test_wrong_usage_is_status_2(run) -> None:
    assert run("probe", "add", "--jsn").exit_code == 2
    assert run("prob").exit_code == 2


def test_a_broken_verb_breaks_no_other(run) -> None:
    assert isinstance(run("broken").exception, ModuleNotFoundError)
    assert run("probe", "add").exit_code == 0


@pytest.mark.parametrize("verb", [command.name for command in cli.app.registered_commands])
def test_every_verb_explains_itself(verb: str) -> None:
    result = CliRunner().invoke(cli.app, [verb, "--help"])
    assert result.exit_code == 0, result.output
    assert "--json" in result.output


def test_module_and_script_are_the_same_door(run_python) -> None:
    program = "import runpy, sys; sys.argv = ['rafters', '--version']; runpy.run_module('rafters', run_name='__main__')"
    assert run_python(program).strip() == f"rafters {rafters.__version__}"
