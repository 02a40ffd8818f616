"""`rafters measure`: anybody's function on the roofline."""

import functools
import importlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from rafters import device as devices
from rafters.cli import _shapes
from rafters.cli._options import finite
from rafters.cost import Cost
from rafters.dtypes import parse_dtype
from rafters.errors import MeasureError, RaftersError
from rafters.roofline import Results, ceilings, count, measure, write
from rafters.roofline import rotation as rotating
from rafters.roofline.chart import model, terminal
from rafters.roofline.declaring import measured
from rafters.roofline.measurement import writable

_OURS = str(Path(__file__).parents[1])


def main(
    function: Annotated[str, typer.Argument(help="file.py:function or package.module:function.")],
    shapes: Annotated[str, typer.Option(help="For example 16x4096,1048577; several arguments: 16x4096+4096.")] = "",
    args: Annotated[str, typer.Option(help="file.py:function that returns the arguments, instead of shapes.")] = "",
    dtype: Annotated[str, typer.Option(help="bf16, fp16, fp32, ...")] = "fp32",
    bytes_: Annotated[
        str | None, typer.Option("--bytes", help="Bytes a call moves, or 'read, written': x.nbytes, y.nbytes.")
    ] = None,
    flops: Annotated[str, typer.Option(help="FLOPs of a call, from the same names; counted if not given.")] = "",
    reference: Annotated[str | None, typer.Option(help="A function that gives the right result.")] = None,
    hot: Annotated[bool, typer.Option("--hot", help="Leave the data in cache, and say so.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda, cuda:1 or cpu; the GPU if there is one.")] = None,
    time_limit: Annotated[float, typer.Option(min=0.1, callback=finite, help="Seconds a case may take.")] = 10.0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Append the results to this .jsonl file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure a function on the roofline of this device. Bytes are counted if they are not given. Exit status 1 unless valid."""
    if output is not None:
        writable(output)  # found before the measuring, not after
    fn, where = load(function), devices.resolve(device)
    right = load(reference) if reference else None
    cases = _cases(fn, shapes, args, dtype, where)
    for make in cases:  # what fails is found before the ceilings are measured, and is said in the user's own words
        values = _tried(args or "--shapes", make)
        for name, called in ((function, fn), (reference, right)):
            if called is not None:
                _tried(str(name), called, *rotating.clone(values))
    known = None if hot else ceilings(where, quick=True)
    found = []
    for make in cases:
        cost = _cost(fn, make(), bytes_, flops) if bytes_ or flops else None
        name = function.rpartition(":")[2]
        found.append(
            measure(fn, make, cost, reference=right, name=name, hot=hot, ceilings=known, device=where, time_limit_s=time_limit)
        )
    environment = devices.environment(where)
    if output is not None:
        write(output, found, environment=environment, ceilings=known)
    if as_json:
        typer.echo(json.dumps({"environment": environment.to_json(), "measurements": [m.to_json() for m in found]}))
    else:
        results = Results(found, [known] if known else [], {environment.id: environment})
        typer.echo(terminal.draw(model.chart(results)))
        for m in found:
            for remark in (*m.reasons, *m.notes):
                typer.echo(f"{m.name} {m.shape}: {remark}")
    if not all(m.ok for m in found):
        raise typer.Exit(1)


def load(name: str) -> Callable[..., Any]:
    """The function that `file.py:function` or `package.module:function` names. Raises MeasureError, saying what is missing."""
    module_name, colon, attribute = name.rpartition(":")
    if not colon or not module_name or not attribute:
        raise MeasureError(f"{name!r} names no function: write file.py:function or package.module:function")
    module = _module(module_name)
    found = getattr(module, attribute, None)
    if found is None:
        raise MeasureError(f"{module_name} has no {attribute!r}")
    if not callable(found) or type(found).__name__ in ("JITFunction", "Autotuner"):
        raise MeasureError(f"{name} cannot be called with tensors alone: write a function that launches it, grid included")
    return found  # type: ignore[no-any-return]


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise MeasureError(f"no module {error.name!r}: a file is written with its .py") from error
    path = Path(name)
    if not path.is_file():
        raise MeasureError(f"no file {name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise MeasureError(f"{name} is not Python")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as an import would: dataclasses and Triton look their own module up.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _cases(
    fn: Callable[..., Any], shapes: str, args: str, dtype: str, where: torch.device
) -> list[Callable[[], tuple[Any, ...]]]:
    if args:
        make = load(args)
        return [lambda: tuple(make())]
    if not shapes:
        raise MeasureError("say what to call it with: --shapes 4096x4096, or --args file.py:function")
    try:
        kind = parse_dtype(dtype)
    except ValueError as error:
        raise MeasureError(f"--dtype: {error}") from None
    if not kind.is_floating_point:
        raise MeasureError(f"--dtype {dtype}: only floating-point arguments can be drawn; others come from --args")
    return [functools.partial(arguments, case, fn, kind, where) for case in _shapes.parse(shapes)]


def arguments(case: _shapes.Case, fn: Callable[..., Any], dtype: torch.dtype, where: torch.device) -> tuple[torch.Tensor, ...]:
    """Normal random tensors of the shapes; the last shape serves the parameters that follow and have no default."""
    needed = [p for p in _parameters(fn) if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    shapes = [*case.shapes, *[case.shapes[-1]] * (len(needed) - len(case.shapes))]
    return tuple(torch.randn(shape, device=where).to(dtype) for shape in shapes)


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """None for a function that does not tell, as many of torch's: it gets as many arguments as there are shapes."""
    try:
        return list(inspect.signature(fn).parameters.values())
    except ValueError:
        return []


def _tried(name: str, fn: Callable[..., Any], *values: Any) -> Any:
    """What `fn` returns. What it raises is a sentence that names it and, where the user wrote it, the line."""
    try:
        return fn(*values)
    except RaftersError:
        raise
    except Exception as error:  # the user's function, of any kind
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(_OURS)]
        where = f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else ""
        raise MeasureError(f"{name} failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}{where}") from error


def _cost(fn: Callable[..., Any], values: tuple[Any, ...], bytes_: str | None, flops: str) -> Cost:
    """The cost the user's expressions give; the function's parameters are their names. What is not given is counted."""
    names = dict(zip((p.name for p in _parameters(fn)), values, strict=False))

    def evaluate(text: str) -> Any:
        try:
            return eval(text, {"__builtins__": {}}, names)  # noqa: S307  (the user's own words on the user's own command line)
        except Exception as error:
            raise MeasureError(f"{text!r} cannot be computed from {', '.join(names) or 'nothing'}: {error}") from error

    counted = count(fn, values).minimum if not bytes_ or not flops else Cost(0, 0)
    moved = evaluate(bytes_) if bytes_ else (counted.read_bytes, counted.written_bytes)
    if isinstance(moved, tuple) and len(moved) != 2:
        raise MeasureError(f"--bytes {bytes_}: wanted one amount or two, read and written; got {len(moved)}")
    return measured(bytes=moved, flops=evaluate(flops) if flops else counted.flops)(fn).cost(*values)
