"""What a call refuses: one family of errors, one sentence each, which names op, argument, what was got and what was wanted."""

import re

import pytest
import torch

import rafters
from rafters import ArgumentError, RaftersError, View, lang, tl

X = torch.ones(2, 3)
META = [  # (what, call, text)
    ("shapes", lambda: rafters.add(X, torch.ones(4)),
     r"add: argument 'y': got shape (4,), wanted a shape that broadcasts with x (2, 3) (dimension -1 does not)"),
    ("dtype", lambda: rafters.silu(torch.ones(3, dtype=torch.int32)),
     "silu: argument 'x': got dtype torch.int32, wanted a floating-point dtype"),
    ("bool", lambda: rafters.sub(X > 0, X), "sub: argument 'x': got dtype torch.bool, wanted a dtype other than torch.bool"),
    ("condition", lambda: rafters.where(X, X, X), "where: argument 'condition': got dtype torch.float32, wanted torch.bool"),
    ("complex", lambda: rafters.add(X, torch.ones(3, dtype=torch.complex64)),
     "add: argument 'y': got dtype torch.complex64, wanted one of"),
    ("uint16", lambda: rafters.add(torch.ones(3, dtype=torch.uint16), 1),
     "add: argument 'x': got dtype torch.uint16, wanted one of"),
    ("string", lambda: rafters.add(X, "y"), "add: argument 'y': got str, wanted a tensor or a number"),
    ("None", lambda: rafters.add(X, None), "add: argument 'y': got NoneType, wanted a tensor or a number"),
    ("list", lambda: rafters.add(X, [1, 2, 3]), "add: argument 'y': got list, wanted a tensor or a number"),
    ("complex number", lambda: rafters.add(X, 1j), "add: argument 'y': got complex, wanted a tensor or a number"),
    ("no tensor", lambda: rafters.add(1, 2), "add: no argument is a tensor; at least one must be"),
    ("scalar", lambda: rafters.softcap(X, "50"), "softcap: argument 'cap': got str, wanted a Python float"),
    ("tensor for a scalar", lambda: rafters.softcap(X, X), "softcap: argument 'cap': got Tensor, wanted a Python float"),
    ("range", lambda: rafters.add(torch.ones(3, dtype=torch.uint8), 256),
     "add: argument 'y': got the number 256, wanted a number that torch.uint8 can hold (0 to 255)"),
    ("number beside bool", lambda: rafters.sub(X, True),
     "sub: argument 'y': got the number True, wanted a dtype other than torch.bool"),
    ("two float8", lambda: rafters.add(X.to(torch.float8_e5m2), X.to(torch.float8_e4m3fn)), "wanted the same float8 dtype"),
    ("sparse", lambda: rafters.add(X.to_sparse(), X),
     "add: argument 'x': got layout torch.sparse_coo, wanted a strided (dense) tensor"),
    ("out shape", lambda: rafters.add(X, 1, out=torch.empty(3, 2)), "add: argument 'out': got shape (3, 2), wanted shape (2, 3)"),
    ("out dtype", lambda: rafters.add(X, 1, out=torch.empty(2, 3, dtype=torch.int64)),
     "add: argument 'out': got dtype torch.int64, wanted dtype torch.float32"),
    ("out is no tensor", lambda: rafters.add(X, 1, out=3), "add: argument 'out': got"),
    ("two outs", lambda: rafters.add(X, 1, out=(X.clone(), X.clone())),
     "add: argument 'out': got 2 tensors, wanted 1, one a result"),
    ("out overlaps itself", lambda: rafters.add(X, 1, out=torch.zeros(3).expand(2, 3)),
     "add: argument 'out': got strides (0, 1), wanted a tensor that does not overlap itself"),
    ("out overlaps", lambda: rafters.add(BASE[:8], 1, out=BASE[1:]),
     "add: argument 'out': got memory that overlaps 'x', wanted memory of its own, or exactly 'x'"),
    ("out on another device", lambda: rafters.add(X, 1, out=torch.empty(2, 3, device="meta")),
     "add: argument 'out': got device meta, wanted device cpu"),
]  # fmt: skip
BASE = torch.zeros(9)


@pytest.mark.parametrize(("what", "call", "text"), META, ids=[m[0] for m in META])
def test_the_sentence(what, call, text):
    for _ in range(2):  # a refused call leaves no plan behind
        with pytest.raises(ArgumentError, match=re.escape(text)):
            call()


@pytest.mark.parametrize(
    "call", [lambda: rafters.add(X), lambda: rafters.add(X, X, X), lambda: rafters.add(X, z=X), lambda: rafters.silu()]
)
def test_a_wrong_signature_is_a_type_error_as_in_python(call):
    with pytest.raises(TypeError, match="argument"):
        call()


def test_one_family():
    for error in (ArgumentError, rafters.BodyError, rafters.CompileError, rafters.MeasureError):
        assert issubclass(error, RaftersError)
    assert issubclass(RaftersError, RuntimeError)


@pytest.mark.gpu
def test_mixed_devices():
    with pytest.raises(ArgumentError, match=re.escape("add: argument 'y': got device cpu, wanted device cuda:0 (that of 'x')")):
        rafters.add(X.cuda(), X)
    with pytest.raises(ArgumentError, match="argument 'out': got device cpu, wanted device cuda:0"):
        rafters.add(X.cuda(), 1, out=torch.empty(2, 3))


def test_an_index_that_is_none():
    @rafters.elementwise(name="t_bad::pick", views={"row": View("table", rows="positions")})
    def pick(x, row):
        return x + row

    for index, got in (
        (torch.ones(2), "dtype torch.float32"),
        (torch.ones(2, dtype=torch.uint8), "dtype torch.uint8"),
        ([0, 1], "list"),
    ):
        with pytest.raises(
            ArgumentError, match=f"pick: argument 'positions': got {got}, wanted an int32 or int64 tensor of row numbers"
        ):
            pick(X, X, index)
    with pytest.raises(ArgumentError, match="pick: argument 'positions': got shape"):
        pick(X, X, torch.zeros(5, dtype=torch.int64))


def test_int_scalar_refuses_a_fraction():
    @rafters.elementwise(name="t_bad::shift")
    def shift(x, n: int):
        return x + n

    with pytest.raises(ArgumentError, match=re.escape("shift: argument 'n': got 1.5, wanted an int")):
        shift(X, 1.5)


def test_a_tensor_for_a_compile_time_value():
    @rafters.elementwise(name="t_bad::flip")
    def flip(x, back: bool = False, K: tl.constexpr = 1):
        return -x * K if back else x * K

    with pytest.raises(ArgumentError, match="flip: argument 'back': got a tensor, wanted a compile-time value"):
        flip(X, X)
    with pytest.raises(ArgumentError, match="flip: argument 'K': got a tensor, wanted a compile-time value"):
        flip(X, True, X)
    with pytest.raises(ArgumentError, match="flip: argument 'back'"):
        flip(X, 2)


def test_a_row_wise_op_of_0_d_tensors():
    @rafters.rowwise(name="t_bad::total")
    def total(x):
        return x * lang.row_sum(x)

    with pytest.raises(ArgumentError, match="total: all arguments are 0-d; a row-wise op needs at least one dimension, its row"):
        total(torch.tensor(1.0))


def test_gradients_that_do_not_exist():
    @rafters.elementwise(name="t_bad::double_", outputs=(rafters.Output(into="x"),))
    def double_(x):
        return x * 2

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RaftersError, match="double_: it overwrites an argument and has no gradient"):
        double_(x * 1)
    with torch.no_grad():
        double_(x)
    assert x.tolist() == [2, 2, 2]
    with pytest.raises(RaftersError, match=r"add: out= takes no part in autograd; call it without out=, or under torch.no_grad"):
        rafters.add(x, 1, out=torch.empty(3))
