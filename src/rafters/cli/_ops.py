"""From what is typed to ops: `add`, `my_op.py`, `my_op.py:swish`, `package.module:swish`."""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rafters.errors import RaftersError
from rafters.operator import Op


def find(names: Sequence[str]) -> list[Op]:
    """The ops meant, each once, in the order given. Raises RaftersError for what is not there."""
    found: dict[str, Op] = {}
    for name in names:
        for op in _meant(name):
            found.setdefault(op.qualified_name, op)
    return list(found.values())


def _meant(name: str) -> list[Op]:
    # A file may have a colon of its own: C:\\my_op.py
    path, _, attribute = name.rpartition(":") if ":" in name and not name.endswith(".py") else (name, "", "")
    if path.endswith(".py"):
        return _in_module(_load(Path(path)), attribute, path)
    if attribute:
        return _in_module(_import(path), attribute, path)
    from rafters.ops import table

    known = table()
    if name in known:
        return [known[name]]
    near = difflib.get_close_matches(name, known, n=3)
    meant = f"did you mean {' or '.join(near)}?" if near else f"the library has {', '.join(known)}"
    raise RaftersError(f"no op is called {name!r}; {meant} An op of your own: my_op.py, my_op.py:name or package.module:name")


def _in_module(module: ModuleType, attribute: str, where: str) -> list[Op]:
    own = {name: value for name, value in vars(module).items() if isinstance(value, Op) and value.__module__ == module.__name__}
    if not attribute:
        if not own:
            raise RaftersError(f"{where} defines no op; decorate a function with @rafters.elementwise")
        return list(own.values())
    value = vars(module).get(attribute)
    if not isinstance(value, Op):
        got = f"{attribute!r} there is a {type(value).__name__}" if attribute in vars(module) else f"it has no {attribute!r}"
        raise RaftersError(f"{where}: {got}, not an op; its ops are {', '.join(own) or 'none'}")
    return [value]


def _load(path: Path) -> ModuleType:
    """A file as a module of its own name; its folder is importable, as when Python runs it."""
    path = path.resolve()
    if not path.is_file():
        raise RaftersError(f"there is no file {path}")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    # A name that is taken (a file called json.py) would replace the module that others import.
    name = path.stem if known is None and _is_free(path) else f"{path.stem}_file"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RaftersError(f"{path} cannot be imported as Python")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except RaftersError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        raise RaftersError(f"{path}: {type(error).__name__}: {error}{_line(error, path)}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _is_free(path: Path) -> bool:
    """Does no other module go by this file's name?"""
    found = importlib.util.find_spec(path.stem)
    return found is None or (found.origin is not None and Path(found.origin).resolve() == path)


def _line(error: Exception, path: Path) -> str:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" (line {line})" if line else ""


def _import(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RaftersError(f"module {name!r} cannot be imported: {error}") from error
    finally:
        sys.path.remove("")
