"""The public names, pinned. A change here is a change for users: it goes into CHANGELOG.md, and what was released stays."""

import ast
import types
from pathlib import Path

import pytest

import rafters

SRC = Path(rafters.__file__).parent

PUBLIC = [
    *("ArgumentError", "BodyError", "CompileError", "Cost", "Launch", "MeasureError", "Op", "Output", "RaftersError"),
    *("View", "__version__"),
    *(
        "add",
        "clamp",
        "div",
        "elementwise",
        "from_torch",
        "gelu",
        "gelu_tanh",
        "kernel",
        "lang",
        "lerp",
        "maximum",
        "measure",
        "measured",
    ),
    *(
        "minimum",
        "mul",
        "mul_add",
        "no_compile",
        "ops",
        "options",
        "relu",
        "roofline",
        "rowwise",
        "scale",
        "scale_bias",
        "sigmoid",
        "silu",
        "silu_mul",
    ),
    *("softcap", "sub", "tanh", "tl", "variants", "warm", "where"),
]


def test_the_public_names_are_these() -> None:
    assert dir(rafters) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_loads(name: str) -> None:
    value = getattr(rafters, name)
    assert isinstance(value, types.ModuleType) == (name in rafters._MODULES or name == "tl")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rafters' has no attribute 'ad'"):
        rafters.ad  # noqa: B018  (the access is the test)


def test_type_checkers_see_the_same_homes() -> None:
    """The names under TYPE_CHECKING are those of the table, ops aside: those are built at run time."""
    tree = ast.parse((SRC / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {(node.module, alias.name) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    table = {(home, name) for name, home in rafters._HOME_OF.items() if home != "rafters.ops"}
    assert seen == table | {("rafters", name) for name in rafters._MODULES}


def test_no_submodule_takes_a_public_name(run_python) -> None:
    """Loading a submodule sets an attribute of its package: after all of them, every name still means what it meant."""
    rooms = {path.stem for path in SRC.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms & set(rafters._HOME_OF) == set()

    program = """
import importlib, pkgutil, sys, types
import rafters
for module in pkgutil.walk_packages(rafters.__path__, "rafters."):
    if module.name != "rafters.__main__":
        importlib.import_module(module.name)
for package in (rafters, sys.modules["rafters.ops"]) if "rafters.ops" in sys.modules else ():
    for name in rafters._HOMES["rafters.ops"]:
        assert not isinstance(getattr(package, name), types.ModuleType), f"{package.__name__}.{name} is a module"
"""
    run_python(program)
