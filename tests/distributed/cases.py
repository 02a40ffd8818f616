"""What an op does with DTensors, as functions that every process of a mesh runs; worker.py runs them, on gloo or NCCL.

Values are small whole numbers where sums of parts are compared bit for bit: no order of adding them changes the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import register_sharding

import rafters
from rafters import Output, View, lang, tl

ROWS, COLS = 7, 4  # rows that 2 does not divide
OTHERS = {"same": (ROWS, COLS), "vector": (COLS,), "row": (1, COLS), "column": (ROWS, 1), "point": ()}
BINARY = {"add": rafters.add, "mul": rafters.mul, "silu_mul": rafters.silu_mul, "scale": rafters.scale}


@dataclass(frozen=True)
class Case:
    run: Callable[["Setting"], None]
    least: int = 1  # processes


CASES: dict[str, Case] = {}


def case(function: Callable[["Setting"], None]) -> Callable[["Setting"], None]:
    CASES[function.__name__] = Case(function)
    return function


class Setting:
    """The mesh of a case, and tensors on it."""

    def __init__(self, device: str, world: int) -> None:
        self.device, self.world = device, world
        self.mesh = init_device_mesh(device, (world,))
        self.generator = torch.Generator().manual_seed(5)  # the same on every process

    def full(self, *shape: int) -> torch.Tensor:
        return torch.randint(-8, 9, shape, generator=self.generator).float().to(self.device)

    def place(self, full: torch.Tensor, placement: Any, mesh: Any = None) -> DTensor:
        """`full` as a DTensor; a partial sum is cut into parts that differ."""
        mesh = mesh or self.mesh
        if not placement.is_partial():
            return distribute_tensor(full.clone(), mesh, [placement])  # a replica may be `full` itself
        parts = torch.randint(-8, 9, (mesh.size(), *full.shape), generator=self.generator).to(full)
        parts[0] = full * (mesh.size() if placement.reduce_op == "avg" else 1) - parts[1:].sum(0)
        return DTensor.from_local(parts[mesh.get_local_rank()], mesh, [placement])


def placements(shape: tuple[int, ...]) -> list[Any]:
    return [Replicate(), Partial(), *(Shard(d) for d, n in enumerate(shape) if n > 1)]


def same(made: DTensor, wanted: torch.Tensor, exact: bool = True) -> None:
    """`exact` is to the bit."""
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-5}
    assert isinstance(made, DTensor), type(made)
    torch.testing.assert_close(made.full_tensor(), wanted, **tolerance)


def quietly(call: Callable[[], Any]) -> Any:
    """The result of a call that moves nothing between processes."""
    with CommDebugMode() as traffic:
        made = call()
    assert traffic.get_total_counts() == 0, traffic.get_comm_counts()
    return made


def refused(call: Callable[[], Any], *texts: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        call()
    missing = [text for text in texts if text not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"


# -- every mix of placements ---------------------------------------------------------------------------------------------------


def _mixes(op: Any, other: tuple[int, ...]) -> Callable[[Setting], None]:
    def run(s: Setting) -> None:
        x, y = s.full(ROWS, COLS), s.full(*other)
        wanted = op(x, y)
        for p, q in product(placements(x.shape), placements(other)):
            for first, second, expected in ((x, y, wanted), (y, x, op(y, x))):
                a, b = (p, q) if first is x else (q, p)
                same(op(s.place(first, a), s.place(second, b)), expected, exact=op is not rafters.silu_mul)

    return run


def _gradients(op: Any, other: tuple[int, ...]) -> Callable[[Setting], None]:
    def run(s: Setting) -> None:
        x, y, upstream = s.full(ROWS, COLS), s.full(*other), s.full(ROWS, COLS)
        inputs = [t.clone().requires_grad_() for t in (x, y)]
        op(*inputs).backward(upstream)
        for p, q, g in product(placements(x.shape), placements(other), (Replicate(), Shard(0), Shard(1))):
            placed = [s.place(t, where).requires_grad_() for t, where in ((x, p), (y, q))]
            op(*placed).backward(s.place(upstream, g))
            for given, plain in zip(placed, inputs, strict=True):
                same(given.grad, plain.grad, exact=op is not rafters.silu_mul)

    return run


for name, op in BINARY.items():
    for kind, other in OTHERS.items():
        CASES[f"mixes-{name}-{kind}"] = Case(_mixes(op, other))
        if name != "scale":
            CASES[f"gradients-{name}-{kind}"] = Case(_gradients(op, other))


# -- what moves, and what stays ------------------------------------------------------------------------------------------------


@case
def shards_stay_where_they_are(s: Setting) -> None:
    x, v, column = s.full(ROWS, COLS), s.full(COLS), s.full(ROWS, 1)
    for p, q in ((Shard(0), Replicate()), (Shard(1), Shard(0))):
        for op in BINARY.values():
            a, b = s.place(x, p), s.place(v, q)
            assert quietly(lambda op=op, a=a, b=b: op(a, b)).placements == (p,)
            assert quietly(lambda op=op, a=a: op(a, a)).placements == (p,)
    a, b = s.place(x, Shard(0)), s.place(column, Shard(0))
    assert quietly(lambda: rafters.mul(a, b)).placements == (Shard(0),)


@case
def partial_sums_stay_so_where_the_op_is_linear(s: Setting) -> None:
    x, v = s.full(ROWS, COLS), s.full(COLS)
    for kind in (Partial(), Partial("avg")):
        a, b = s.place(x, kind), s.place(v, Replicate())
        for made, wanted in (
            (quietly(lambda a=a, b=b: rafters.mul(a, b)), x * v),
            (quietly(lambda a=a: rafters.add(a, a)), x + x),
            (quietly(lambda a=a, b=b: rafters.scale_bias(a, b, a)), x * v + x),
            (quietly(lambda a=a: rafters.mul(a, 2.0)), x * 2),
        ):
            assert made.placements == (kind,)
            same(made, wanted)


@case
def partial_sums_are_added_up_where_it_is_not(s: Setting) -> None:
    x, v = s.full(ROWS, COLS), s.full(COLS)
    a, b = s.place(x, Partial()), s.place(v, Replicate())
    for made, wanted in ((rafters.add(a, b), x + v), (rafters.relu(a), x.relu()), (rafters.add(a, 1.0), x + 1)):
        assert not made.placements[0].is_partial()
        same(made, wanted)
    same(rafters.mul(a, a), x * x)  # one of the two may stay as it is
    largest = DTensor.from_local(x * (s.mesh.get_local_rank() + 1), s.mesh, [Partial("max")])
    same(rafters.mul(largest, s.place(v, Replicate())), torch.maximum(x, x * s.world) * v)
    codes = DTensor.from_local(x.to(torch.int8), s.mesh, [Partial()])
    made = rafters.mul(codes, s.place(x.int(), Replicate()))  # int8 parts would wrap in another place than their sum
    assert not made.placements[0].is_partial()
    same(made, (x * s.world).int() * x.int())


@case
def averages_and_sums_do_not_mix(s: Setting) -> None:
    x, y = s.full(ROWS, COLS), s.full(ROWS, COLS)
    same(rafters.add(s.place(x, Partial()), s.place(y, Partial("avg"))), x + y)


@case
def numbers_and_points(s: Setting) -> None:
    x = s.full(ROWS, COLS)
    for p in placements(x.shape):
        a = s.place(x, p)
        for number in (3, 2.0, torch.tensor(2.0, device=s.device), torch.tensor(2.0)):
            same(rafters.mul(a, number), x * number)
            same(rafters.add(a, number), x + number)
            same(rafters.scale(a, number), x * number)
        same(rafters.softcap(a, 4.0), rafters.softcap(x, 4.0))
        same(rafters.clamp(a, None, 2.0), x.clamp(max=2))
        same(rafters.clamp(a, -1.0), x.clamp(min=-1))


@case
def few_rows(s: Setting) -> None:
    """Fewer rows than processes, and none."""
    for rows in (0, 1):
        x, v = s.full(rows, COLS), s.full(COLS)
        for p in (Shard(0), Shard(1), Replicate()):
            same(rafters.mul(s.place(x, p), s.place(v, Replicate())), x * v)


@case
def through_the_registered_op_and_without_gradients(s: Setting) -> None:
    x = s.full(ROWS, COLS)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            a = s.place(x, Shard(0))
            same(torch.ops.rafters.add(a, a), x + x)
            same(rafters.add(a, a), x + x)
            into = s.place(torch.zeros_like(x), Shard(1))
            assert rafters.add(a, a, out=into) is into
            same(into, x + x)
    a = s.place(x, Shard(0)).requires_grad_()
    same(torch.ops.rafters.mul(a, a), x * x)


# -- rows, halves, selected rows, memory of the caller's ------------------------------------------------------------------------


@rafters.rowwise(name="t_dtensor::norm", outputs=(Output(), Output(torch.float32, per_row=True)))
def norm(x, weight, eps: float = 1e-6):
    scale = lang.rsqrt(lang.row_mean(x * x) + eps)
    return x * scale * weight, scale


@case
def rows_of_a_row_wise_op(s: Setting) -> None:
    x, w = s.full(4, ROWS, COLS), s.full(COLS)
    wanted, scales = norm(x, w)
    for p in (Shard(0), Shard(1)):
        a, b = s.place(x, p), s.place(w, Replicate())
        made, scale = quietly(lambda a=a, b=b: norm(a, b))
        assert made.placements == scale.placements == (p,)
        same(made, wanted, exact=s.device == "cuda")  # a kernel's row does not know its batch; PyTorch's CPU loops do
        same(scale, scales, exact=s.device == "cuda")
    for p, q in ((Shard(2), Replicate()), (Replicate(), Shard(0)), (Partial(), Replicate()), (Shard(0), Partial())):
        made, scale = norm(s.place(x, p), s.place(w, q))
        same(made, wanted, exact=False)
        same(scale, scales, exact=False)


@case
def gradients_of_a_row_wise_op(s: Setting) -> None:
    x, w = s.full(ROWS, COLS), s.full(COLS)
    inputs = [t.clone().requires_grad_() for t in (x, w)]
    norm(*inputs)[0].sum().backward()
    for p, q in product((Shard(0), Shard(1), Replicate()), (Replicate(), Shard(0))):
        placed = [s.place(t, where).requires_grad_() for t, where in ((x, p), (w, q))]
        norm(*placed)[0].sum().backward()
        for given, plain in zip(placed, inputs, strict=True):
            same(given.grad, plain.grad, exact=False)


@rafters.elementwise(name="t_dtensor::gated", views={"gate": View("x", "lo"), "up": View("x", "hi")})
def gated(gate, up):
    return gate * lang.sigmoid(gate) * up


@case
def halves_of_a_dimension(s: Setting) -> None:
    x = s.full(ROWS, COLS)
    a = s.place(x, Shard(0))
    assert quietly(lambda: gated(a)).placements == (Shard(0),)
    for p in placements(x.shape):
        same(gated(s.place(x, p)), gated(x), exact=False)


@rafters.elementwise(name="t_dtensor::gathered", views={"row": View("table", rows="positions")})
def gathered(x, row):
    return x + row


@case
def rows_selected_by_an_index(s: Setting) -> None:
    x, table = s.full(ROWS, COLS), s.full(5, COLS)
    positions = torch.tensor([4, 0, 9, 1, -1, 2, 2], device=s.device)  # 9 and -1 are outside: those rows are NaN
    wanted = gathered(x, table, positions)
    a, b, c = s.place(x, Shard(0)), s.place(table, Replicate()), s.place(positions, Shard(0))
    assert quietly(lambda: gathered(a, b, c)).placements == (Shard(0),)
    for p, q, r in product(placements(x.shape), placements(table.shape), (Replicate(), Shard(0))):
        made = gathered(s.place(x, p), s.place(table, q), s.place(positions, r))
        torch.testing.assert_close(made.full_tensor(), wanted, rtol=0, atol=0, equal_nan=True)


@rafters.elementwise(
    name="t_dtensor::rope_",
    views={"x1": View("x", "lo"), "x2": View("x", "hi"), "c": View("table", "lo", "at"), "d": View("table", "hi", "at")},
    outputs=(Output(into="x", part="lo"), Output(into="x", part="hi")),
)
def rope_(x1, x2, c, d):
    return x1 * c - x2 * d, x2 * c + x1 * d


@rafters.elementwise(name="t_dtensor::write", outputs=(Output(into="cache", rows="slots"),))
def write(x):
    return x * 2


@case
def an_overwritten_argument_stays_where_it_is(s: Setting) -> None:
    x, table, at = s.full(ROWS, 4, COLS), s.full(ROWS, COLS), torch.arange(ROWS, device=s.device).flip(0)
    wanted = x.clone()
    rope_(wanted, table, at)
    for p, q, r in product(placements(x.shape)[:-1], (Replicate(), Shard(0), Shard(1)), (Replicate(), Shard(0))):
        a = s.place(x, p)
        rope_(a, s.place(table, q), s.place(at, r))
        assert a.placements == (p,)
        same(a, wanted)
    if s.world > 1:
        a, b, c = s.place(x, Shard(2)), s.place(table, Replicate()), s.place(at, Replicate())
        refused(lambda: rope_(a, b, c), "rope_", "Shard(dim=2)")
        same(a, x)


@case
def rows_written_to_a_cache(s: Setting) -> None:
    x, cache, slots = s.full(ROWS, COLS), s.full(9, COLS), torch.tensor([8, 0, 3, 1, 5, -1, 2], device=s.device)
    wanted = cache.clone()
    write(x, wanted, slots)
    for p, q in product((Replicate(), Shard(0), Shard(1)), (Replicate(), Shard(1))):
        kept = s.place(cache, q)
        write(s.place(x, p), kept, s.place(slots, Replicate()))
        assert kept.placements == (q,)
        same(kept, wanted)
    if s.world > 1:  # rows that another process writes would be missing here
        kept = s.place(cache, Shard(0))
        refused(lambda: write(s.place(x, Shard(0)), kept, s.place(slots, Shard(0))), "write: argument 'cache'", "Shard(dim=0)")
        same(kept, cache)


@rafters.elementwise(name="t_dtensor::products", outputs=(Output(dtype="x", sum_to="x"), Output(dtype="y", sum_to="y")))
def products(grad, x, y):
    return grad * y, grad * x


@case
def results_summed_to_an_argument(s: Setting) -> None:
    grad, x, v = s.full(ROWS, COLS), s.full(ROWS, COLS), s.full(COLS)
    wanted = products(grad, x, v)
    a, b, c = s.place(grad, Shard(0)), s.place(x, Shard(0)), s.place(v, Replicate())
    made = quietly(lambda: products(a, b, c))
    assert [m.placements for m in made] == [(Shard(0),), (Partial(),)]
    for where in product(placements(grad.shape), placements(x.shape), placements(v.shape)):
        made = products(*map(s.place, (grad, x, v), where))
        for one, other in zip(made, wanted, strict=True):
            same(one, other)


# -- compile-time values, other kinds of op, errors ------------------------------------------------------------------------------


@rafters.elementwise(name="t_dtensor::power")
def power(x, K: tl.constexpr = 1, factor: float = 2.0):
    return x * x * factor if K == 2 else x * factor


@case
def compile_time_values_are_told_apart(s: Setting) -> None:
    x = s.full(ROWS, COLS)
    a = s.place(x, Partial())
    for K in (1, 2, 1, 2):
        made = power(a, K)
        assert made.placements[0].is_partial() == (K == 1)
        same(made, (x if K == 1 else x * x) * 2)
    same(power(a, 2, 3.0), x * x * 3)


def _copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * 2, mask=offsets < n)


@rafters.kernel(_copy_kernel, name="t_dtensor::doubled", reference=lambda x: x * 2)
def doubled(x):
    return rafters.Launch(out=torch.empty_like(x), grid=-(-x.numel() // 128), n=x.numel(), BLOCK=128)


@case
def a_hand_written_kernel_gets_whole_tensors(s: Setting) -> None:
    x = s.full(ROWS, COLS)
    for p in placements(x.shape):
        made = doubled(s.place(x, p))
        assert made.placements == (Replicate(),)
        same(made, x * 2)


@rafters.kernel(_copy_kernel, name="t_dtensor::doubled_by_rows", reference=lambda x: x * 2)
def doubled_by_rows(x):
    return rafters.Launch(out=torch.empty_like(x), grid=-(-x.numel() // 128), n=x.numel(), BLOCK=128)


@register_sharding(torch.ops.t_dtensor.doubled_by_rows.default)
def _by_rows(x):
    return [([Replicate()], [Replicate()]), ([Shard(0)], [Shard(0)])]


@case
def a_rule_declared_anew_stands(s: Setting) -> None:
    x = s.full(ROWS, COLS)
    a = s.place(x, Shard(0))
    made = quietly(lambda: doubled_by_rows(a))
    assert made.placements == (Shard(0),)
    same(made, x * 2)


@rafters.elementwise(name="t_dtensor::named_", outputs=(Output(into="x"), Output()))
def named_(x, y):
    return x + y, x - y


@case
def what_is_refused_says_so(s: Setting) -> None:
    x, v = s.full(ROWS, COLS), s.full(3)
    a = s.place(x, Shard(0))
    refused(lambda: rafters.mul(a, x), "mixed torch.Tensor and DTensor")
    refused(lambda: rafters.mul(a, s.place(v, Replicate())), "mul: argument 'y': got shape (3,)")
    refused(lambda: named_(a, a), "named_", "name it otherwise")


@case
def an_op_made_when_dtensor_is_there(s: Setting) -> None:
    @rafters.elementwise(name=f"t_dtensor::late_{s.world}")
    def late(x, y):
        return x * y

    a = s.place(s.full(ROWS, COLS), Shard(0))
    assert quietly(lambda: late(a, a)).placements == (Shard(0),)


@case
def compiled(s: Setting) -> None:
    x, v = s.full(ROWS, COLS), s.full(COLS)
    backend = "inductor" if s.device == "cuda" else "aot_eager"

    @torch.compile(fullgraph=True, backend=backend)
    def layer(a, b):
        return rafters.silu_mul(rafters.mul(a, b), a)

    for p in (Shard(0), Shard(1)):
        inputs = [t.clone().requires_grad_() for t in (x, v)]
        wanted = rafters.silu_mul(rafters.mul(*inputs), inputs[0])
        wanted.sum().backward()
        placed = [s.place(x, p).requires_grad_(), s.place(v, Replicate()).requires_grad_()]
        made = layer(*placed)
        same(made, wanted.detach(), exact=False)
        made.sum().backward()
        for given, plain in zip(placed, inputs, strict=True):
            same(given.grad, plain.grad, exact=False)


# -- meshes of two dimensions ----------------------------------------------------------------------------------------------------


def on_a_mesh_of_two_dimensions(s: Setting) -> None:
    mesh = init_device_mesh(s.device, (2, s.world // 2))
    x, v = s.full(ROWS, COLS), s.full(COLS)
    for p, q in product(product((Replicate(), Shard(0), Shard(1)), repeat=2), product((Replicate(), Shard(0)), repeat=2)):
        a, b = distribute_tensor(x, mesh, p), distribute_tensor(v, mesh, q)
        same(rafters.mul(a, b), x * v)
        same(rafters.silu_mul(a, b), rafters.silu_mul(x, v), exact=False)
    parts = [Partial(), Shard(0)]
    a = DTensor.from_local(
        distribute_tensor(x, mesh, [Replicate(), Shard(0)]).to_local(), mesh, parts, shape=x.shape, stride=x.stride()
    )
    made = quietly(lambda: rafters.mul(a, 2.0))
    assert list(made.placements) == parts
    same(made, x * 4)
    big, table, at = s.full(ROWS, 4, COLS), s.full(ROWS, COLS), torch.arange(ROWS, device=s.device)
    wanted = big.clone()
    rope_(wanted, table, at)
    for p in product((Replicate(), Shard(0), Shard(1)), repeat=2):
        kept = distribute_tensor(big.clone(), mesh, p)
        rope_(kept, distribute_tensor(table, mesh, [Replicate()] * 2), distribute_tensor(at, mesh, [Replicate()] * 2))
        assert kept.placements == p
        same(kept, wanted)


CASES["on_a_mesh_of_two_dimensions"] = Case(on_a_mesh_of_two_dimensions, least=4)
