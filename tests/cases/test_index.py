"""The table of cases and the tests agree."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent


def listed():
    """(case, file) of each row of the table."""
    rows = re.findall(r"^\| (\d+) \|[^|]*\|(.*)\|$", (HERE / "README.md").read_text(), flags=re.MULTILINE)
    return {(int(case), file) for case, files in rows for file in re.findall(r"\]\(\.\./([^)]+)\)", files)}


def written():
    """(case, file) of each test that is named after a case."""
    found = set()
    for path in HERE.parent.rglob("test_*.py"):
        names = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        cases = {int(match[1]) for name in names if (match := re.match(r"test_case_(\d+)_", name))}
        found |= {(case, path.relative_to(HERE.parent).as_posix()) for case in cases}
    return found


def test_every_case_that_is_listed_has_its_test():
    assert listed() - written() == set()


def test_every_test_of_a_case_is_listed():
    assert written() - listed() == set(), "add a line to tests/cases/README.md"
