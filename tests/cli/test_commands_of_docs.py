"""Every command that README and docs show is one: the verb is there, and so is each option."""

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer

import rafters
from rafters.cli import VERBS

ROOT = Path(__file__).parents[2]
FILES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]


def shown(file):
    """The command lines of rafters in a page: in its blocks, and between backticks."""
    text = (ROOT / file).read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("rafters ")]
    lines += re.findall(r"`(rafters [a-z][^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [re.split(r"\s{2,}|\s#", line)[0] for line in lines]


def options_of(verb):
    command = typer.Typer(add_completion=False)
    command.command(verb)(importlib.import_module(f"rafters.cli.{verb}").main)
    options = [p for p in typer.main.get_command(command).params if p.param_type_name == "option"]
    return {"--help", *(name for p in options for name in (*p.opts, *p.secondary_opts))}


@pytest.mark.parametrize("file", FILES)
def test_verbs_and_options(file):
    for line in shown(file):
        _, verb, *words = shlex.split(line)
        assert verb in VERBS, line
        assert {word.split("=")[0] for word in words if word.startswith("-")} <= options_of(verb), line


def test_something_is_shown():
    assert len(shown("README.md")) >= 7
    assert {line.split()[1] for file in FILES for line in shown(file)} >= {"bench", "env", "inspect", "new", "report", "roofline"}


def names_in(file):
    """`rafters.silu_mul.warm`, and what else of the package a page's Python blocks or its text in backticks name."""
    text = (ROOT / file).read_text()
    found = set()
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("rafters."):
                found.add(ast.unparse(node))
    return found | set(re.findall(r"`(rafters(?:\.[A-Za-z_]\w*)+)(?=[`(])", text))


@pytest.mark.parametrize("file", FILES)
def test_names(file):
    for name in names_in(file):
        if re.fullmatch(r"[\w.]+", name):
            value = rafters
            for part in name.split(".")[1:]:
                assert hasattr(value, part), name
                value = getattr(value, part)
