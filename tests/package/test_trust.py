"""Nothing that is read from a file is run: no pickle, no eval, no exec of what a file says."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "rafters"
FORBIDDEN = {"pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open", "torch.load",
             "numpy.load", "np.load", "runpy.run_path", "yaml.load"}  # fmt: skip
CODE = {"eval", "exec", "importlib.util.spec_from_file_location"}
# What may turn text into code, and whose text that is.
MAKES_CODE = {
    "engine/launch.py": "the launch text of this file",
    "engine/module.py": "the generated kernel",
    "engine/straight.py": "the generated plan",
    "operator/calls/call_text.py": "the generated call",
    "operator/calls/careful.py": "the generated checks of a call",
    "operator/text.py": "the generated body of a backward",
    "trace/body.py": "an annotation in the author's own source",
    "trace/run.py": "the author's own body",
    "cli/measure.py": "words on the user's own command line",
    "cli/_ops.py": "the user's own op file, named on the command line",
    "testing/worker.py": "the user's own op file, in the process of the interpreter",
}


def calls(text: str) -> list[tuple[int, str]]:
    return [(node.lineno, ast.unparse(node.func)) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]


def unsafe(files: dict[str, str]) -> list[str]:
    found = []
    for name, text in files.items():
        for line, function in calls(text):
            if function in FORBIDDEN or (function in CODE and name not in MAKES_CODE):
                found.append(f"{name}:{line} {function}")
    return found


def test_no_file_is_run() -> None:
    assert unsafe({file.relative_to(SRC).as_posix(): file.read_text() for file in SRC.rglob("*.py")}) == []


@pytest.mark.parametrize("line", ["pickle.loads(data)", "eval(path.read_text())", "exec(text)", "torch.load(path)"])
def test_it_would_be_seen(line: str) -> None:
    assert unsafe({"roofline/results.py": line}) == [f"roofline/results.py:1 {line.split('(')[0]}"]


def test_the_list_is_no_longer_than_it_need_be() -> None:
    used = {name for name in MAKES_CODE if any(f in CODE for _, f in calls((SRC / name).read_text()))}
    assert set(MAKES_CODE) == used
