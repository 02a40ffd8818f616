"""`rafters new my_op.py`: a file with an op of one's own that runs, tests and benches itself."""

import json as json_text
import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

from rafters.errors import RaftersError

_TEXT = '''\
"""{title}: an op of my own.

    python {file}            run it once, and compare it with PyTorch
    pytest {file}            test it
    rafters bench {file}     check it, time it, and place it on the roofline
    rafters inspect {file}   what its kernels do, with no GPU needed
"""

import torch

import rafters
from rafters import lang


# The body is Triton's dialect. A parameter without an annotation is a tensor, one with float, int or bool a scalar.
# Values arrive in float32 for half-precision tensors, and the result is rounded once.
@rafters.elementwise
def {name}(x, gate, alpha: float = 1.0):
    """x * gate * sigmoid(alpha * gate)."""
    return x * gate * lang.sigmoid(alpha * gate)


def {name}_ref(x, gate, alpha=1.0):
    """The same in PyTorch, in float64: what the op has to give."""
    x, gate = x.double(), gate.double()
    return x * gate * torch.sigmoid(alpha * gate)


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_{name}():
    for shape in ((), (0,), (1,), (7, 129), (64, 1024)):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x, gate = torch.randn(2, *shape, device=DEVICE).to(dtype)
            torch.testing.assert_close({name}(x, gate, 0.5), {name}_ref(x, gate, 0.5).to(dtype))


def test_gradient():
    x, gate = torch.randn(2, 5, 8, dtype=torch.float64, device=DEVICE).unbind()
    assert torch.autograd.gradcheck({name}, (x.requires_grad_(), gate.requires_grad_()))


if __name__ == "__main__":
    x, gate = torch.randn(2, 1024, 4096, device=DEVICE).unbind()
    difference = ({name}(x, gate) - {name}_ref(x, gate)).abs().max()
    print(f"{name} on {{DEVICE}}: largest difference from float64 {{difference:.1e}}")
    print(f"moves {{{name}.cost(x, gate).total_bytes / 1e6:.1f}} MB")
'''


def main(
    path: Annotated[Path, typer.Argument(help="The file to write, my_op.py for example; the op gets its name.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a starter file with an op of your own. A file that is there is left alone."""
    name = path.stem
    if path.suffix != ".py" or not re.fullmatch(r"[a-z]\w*", name) or keyword.iskeyword(name):
        raise RaftersError(f"{path}: the file is named like the op, a Python name in small letters and .py: my_op.py")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_TEXT.format(name=name, file=path.name, title=name.replace("_", " ").capitalize()))
    except FileExistsError:
        raise RaftersError(f"{path} exists already and was left as it is; name another file") from None
    except OSError as error:
        raise RaftersError(f"{path} cannot be written: {error.strerror or error}") from None
    if json:
        typer.echo(json_text.dumps({"file": str(path), "op": name}))
    else:
        typer.echo(f"{path}: edit the body of `{name}`, then run `rafters bench {path}`")
