"""Calls go down, values come back: a file imports from its own folder or from a lower layer, and no import goes in a circle."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
LAYERS = [
    {"_version", "errors", "dtypes", "device", "cost"},
    {"lang", "roofline"},
    {"trace"},
    {"engine"},
    {"operator"},
    {"ops"},
    {"compat", "testing"},
    {"cli"},
    {"__init__", "__main__"},
]
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}


def modules(src: Path) -> dict[str, Path]:
    """Dotted name -> file. The file of a package is named `package.__init__`, so that it differs from what it contains."""
    return {".".join(file.relative_to(src).with_suffix("").parts): file for file in sorted(src.rglob("*.py"))}


def imports(name: str, tree: ast.Module, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of a module in `known`, wherever it stands: in a function, under TYPE_CHECKING, by name."""

    def found(dotted: str) -> str | None:
        return dotted if dotted in known else f"{dotted}.__init__" if f"{dotted}.__init__" in known else None

    for node in ast.walk(tree):
        wanted: list[str] = []
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(name.split(".")[: -node.level]) + "." * bool(node.module) if node.level else ""
            base = start + (node.module or "")
            # `from package import name` is the submodule of that name if there is one, else the package itself
            wanted = [f"{base}.{alias.name}" if found(f"{base}.{alias.name}") else base for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                wanted = [argument.value]
        yield from ((node.lineno, module) for dotted in wanted if (module := found(dotted)))


def room(module: str) -> str:
    return module.split(".")[1]


def graph(src: Path) -> dict[str, list[tuple[int, str]]]:
    files = modules(src)
    return {name: list(imports(name, ast.parse(file.read_text()), set(files))) for name, file in files.items()}


def upward(edges: dict[str, list[tuple[int, str]]]) -> list[str]:
    def allowed(importer: str, imported: str) -> bool:
        above, below = LAYER_OF[room(importer)], LAYER_OF[room(imported)]
        # the files of layer 0 are its rooms: they may build on each other
        return below < above or room(importer) == room(imported) or above == below == 0

    return [
        f"{importer}:{line} imports {imported}"
        for importer, targets in edges.items()
        for line, imported in targets
        if importer != "rafters.__init__" and not allowed(importer, imported)
    ]


def cycle(edges: dict[str, list[tuple[int, str]]]) -> list[str]:
    try:
        TopologicalSorter(
            {name: {target for _, target in targets if target != name} for name, targets in edges.items()}
        ).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_room_has_a_layer() -> None:
    assert {room(name) for name in modules(SRC)} <= set(LAYER_OF)


def test_imports_point_downwards() -> None:
    assert upward(graph(SRC)) == []


def test_no_imports_in_a_circle() -> None:
    assert cycle(graph(SRC)) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("lang/words.py", "from rafters.engine import plan"),
        ("lang/words.py", "from rafters import engine"),
        ("lang/words.py", "import rafters.engine.plan"),
        ("lang/words.py", "def late():\n    from ..engine import plan"),
        ("lang/words.py", "import importlib\nimportlib.import_module('rafters.engine.plan')"),
        ("lang/words.py", "from rafters.roofline import clock"),  # same layer, another room
        ("cost.py", "import rafters"),
    ],
)
def test_an_upward_import_is_seen(tmp_path: Path, file: str, text: str) -> None:
    house(tmp_path, {file: text})
    assert len(upward(graph(tmp_path))) == 1


def test_a_circle_is_seen(tmp_path: Path) -> None:
    house(tmp_path, {"engine/plan.py": "from rafters.engine import launch", "engine/launch.py": "import rafters.engine.plan"})
    assert set(cycle(graph(tmp_path))) == {"rafters.engine.plan", "rafters.engine.launch"}
    assert upward(graph(tmp_path)) == []


def house(src: Path, texts: dict[str, str]) -> None:
    """A small rafters of otherwise empty files."""
    empty = (
        "__init__.py",
        "cost.py",
        "engine/__init__.py",
        "engine/plan.py",
        "lang/__init__.py",
        "roofline/__init__.py",
        "roofline/clock.py",
    )
    for file in {*empty, *texts}:
        path = src / "rafters" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts.get(file, ""))
