"""Cases 87 and 90: processes that share a cache, places that cannot be written, ops that travel between processes."""

import copy
import os
import pickle
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import rafters
from rafters.roofline import ceiling_cache

ROOT = Path(__file__).parents[2]
PROCESSES = 8

# What a process of a fresh installation does first: compile a kernel and keep what it has measured.
FIRST = """
import dataclasses, sys, torch, rafters
from rafters import device as devices
from rafters.engine.target import parse_target
from rafters.roofline import ceiling_cache
sys.path.insert(0, {roofline!r})
import made
found = made.ceilings()
found = dataclasses.replace(found, device=devices.facts("cpu"), quick=True)
for _ in range(20):
    ceiling_cache._store(found)
    assert ceiling_cache.cached("cpu", quick=True) is not None
try:
    import triton
except ImportError:
    pass
else:
    records = rafters.add.inspect(parse_target("sm_90"), torch.float32)
    assert records and not [r["error"] for r in records if r.get("error")], records
x = torch.arange(5.0)
assert rafters.add(x, 1).tolist() == [1, 2, 3, 4, 5]
print("right")
""".format(roofline=str(ROOT / "tests" / "roofline"))


def start(program: str, *, cwd: Path, **environment: str) -> subprocess.Popen:
    given = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **environment}
    kept = {name: value for name, value in given.items() if value is not None}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=cwd,
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    printed, problems = process.communicate(timeout=600)
    assert process.returncode == 0, printed + problems
    return printed


def test_case_87_many_processes_on_one_empty_cache(tmp_path):
    places = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    processes = [start(FIRST, cwd=tmp_path, **places) for _ in range(PROCESSES)]
    assert [finish(p).strip() for p in processes] == ["right"] * PROCESSES
    (kept,) = (tmp_path / "cache" / "rafters").iterdir()  # and no file half written beside it
    assert kept.name.endswith("-quick.json")


@pytest.mark.gpu
def test_case_87_many_processes_launch_from_one_empty_cache(tmp_path):
    program = """
    import torch, rafters
    x = torch.randn(1000, 257, device="cuda")
    for op, args in ((rafters.add, (x, x)), (rafters.silu, (x,)), (rafters.mul, (x, x[0])), (rafters.scale, (x, 2.0))):
        torch.testing.assert_close(op(*args), op.reference(*args), rtol=1e-5, atol=1e-5)
    print("right")
    """
    for turn in range(2):  # empty, then filled
        processes = [start(program, cwd=tmp_path, TRITON_CACHE_DIR=str(tmp_path / "triton")) for _ in range(PROCESSES)]
        assert [finish(p).strip() for p in processes] == ["right"] * PROCESSES, turn


# -- places that cannot be written -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", ["/dev/null", "/proc/nowhere"])
def test_case_90_a_home_that_cannot_be_written(home, tmp_path):
    """Importing and calling work; what would be kept goes to a folder of the user's own among the temporary files."""
    program = """
    import warnings; warnings.simplefilter("error")
    import dataclasses, sys, torch, rafters
    from rafters import device as devices
    from rafters.roofline import ceiling_cache
    assert rafters.add(torch.ones(2), 1).tolist() == [2, 2]
    sys.path.insert(0, {roofline!r})
    import made
    found = dataclasses.replace(made.ceilings(), device=devices.facts("cpu"), quick=True)
    ceiling_cache._store(found)
    assert ceiling_cache.cached("cpu", quick=True) is not None
    """.format(roofline=str(ROOT / "tests" / "roofline"))
    written = tmp_path / "tmp"
    written.mkdir()
    where = {"XDG_CACHE_HOME": "", "HOME": home, "TMPDIR": str(written)}
    finish(start(program, cwd=tmp_path, **where))
    (folder,) = (f for f in written.iterdir() if f.name.startswith("rafters-"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_case_90_the_first_compile_names_the_setting(tmp_path):
    pytest.importorskip("triton", reason="triton is not installed")
    program = """
    import torch, rafters
    from rafters.engine.target import parse_target
    print(rafters.add.inspect(parse_target("sm_90"), torch.float32)[0]["error"])
    """
    printed = finish(start(program, cwd=tmp_path, HOME="/dev/null", TRITON_CACHE_DIR="/dev/null/cache"))
    assert printed.count("\n") == 1
    assert "set TRITON_CACHE_DIR to a folder that can be written" in printed
    assert "/dev/null" in printed


def test_case_90_the_cache_is_its_owners_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "roofline")
    import made

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "rafters"
    folder.mkdir(mode=0o777)
    ceiling_cache._store(made.ceilings())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(f.stat().st_mode) for f in folder.iterdir()] == [0o600]


def test_case_90_a_folder_of_somebody_else_is_not_used(tmp_path, monkeypatch):
    """Among shared temporary files another user may have taken the name first, or laid a link."""
    monkeypatch.setattr(ceiling_cache.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    own = tmp_path / f"rafters-{os.getuid()}"
    assert own in ceiling_cache._folders()
    own.mkdir(mode=0o755)
    own.chmod(0o755)
    assert own not in ceiling_cache._folders()  # others may look in: it was not us who made it
    own.chmod(0o700)
    assert own in ceiling_cache._folders()
    own.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own.symlink_to(tmp_path / "elsewhere")
    assert own not in ceiling_cache._folders()


def test_case_90_spaces_and_letters_beyond_ascii(tmp_path):
    folder = tmp_path / "Pläne und Entwürfe 図面"
    folder.mkdir()
    (folder / "meine_öps.py").write_text(
        "import rafters\n\n\n@rafters.elementwise(name='entwurf::groesser')\ndef größer(x, factor: float = 2.0):\n"
        '    """Größer: x · β."""\n    β = factor  # β\n    return x * β\n',
        encoding="utf-8",
    )
    program = """
    import torch, meine_öps as m
    from rafters.engine.target import parse_target
    assert m.größer(torch.ones(3)).tolist() == [2, 2, 2]
    assert torch.ops.entwurf.groesser(torch.ones(3), 3.0).tolist() == [3, 3, 3]
    try:
        import triton
    except ImportError:
        pass
    else:
        assert not [r["error"] for r in m.größer.inspect(parse_target("sm_90"), torch.float32) if r.get("error")]
    print("right")
    """
    places = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "ça"), "TRITON_CACHE_DIR": str(folder / "kernel ß")}
    path = os.pathsep.join([str(ROOT / "src"), str(folder)])
    assert finish(start(program, cwd=folder, PYTHONPATH=path, **places)).strip() == "right"


def test_case_90_names_that_pytorch_cannot_take_are_refused():
    def größer(x):
        return x * 2

    def scaled(x, β: float):
        return x * β

    with pytest.raises(rafters.BodyError, match=r"op name .*größer.*ASCII"):
        rafters.elementwise(größer)
    with pytest.raises(rafters.BodyError, match=r"scaled: argument 'β'.*ASCII"):
        rafters.elementwise(scaled)


# -- ops that travel ---------------------------------------------------------------------------------------------------------------


def test_ops_survive_saving_and_spawning(tmp_path):
    """A model that holds ops: copied, saved and loaded in another process, handed to a process that is spawned."""
    (tmp_path / "travelling_model.py").write_text(
        textwrap.dedent("""
        import torch, rafters

        @rafters.elementwise
        def doubled(x):
            return x * 2.0

        @rafters.elementwise(name="travel::other_name")
        def body(x):
            return x * 3.0

        tripled = body
        del body

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second, self.third = doubled, tripled, rafters.silu
                self.weight = torch.nn.Parameter(torch.ones(3))

            def forward(self, x):
                return self.third(self.second(self.first(x * self.weight)))

        def work(model, x, queue):
            queue.put(model(x).detach().tolist())
        """)
    )
    save = """
    import copy, torch, travelling_model as t
    model = copy.deepcopy(t.Model())
    assert model.first is t.doubled
    torch.save(model, "model.pt")
    torch.save(model.state_dict(), "weights.pt")
    """
    load = """
    import multiprocessing, torch
    if __name__ == "__main__":
        model = torch.load("model.pt", weights_only=False)
        model.load_state_dict(torch.load("weights.pt", weights_only=True))
        x = torch.tensor([0.0, 1.0, -1.0])
        wanted = torch.nn.functional.silu(x * 6)
        torch.testing.assert_close(model(x), wanted)
        import travelling_model as t
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=t.work, args=(model, x, queue))
        process.start()
        torch.testing.assert_close(torch.tensor(queue.get(timeout=300)), wanted)
        process.join()
        assert process.exitcode == 0
        print("right")
    """
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path)])
    finish(start(save, cwd=tmp_path, PYTHONPATH=path))
    (tmp_path / "load.py").write_text(textwrap.dedent(load))
    done = subprocess.run(
        [sys.executable, "load.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "right"


def test_an_op_that_no_module_holds_says_so():
    @rafters.elementwise(name="t_processes::inner")
    def inner(x):
        return x + 1

    with pytest.raises(pickle.PicklingError, match=r"t_processes::inner: an op is pickled by its name in a module.*top level"):
        pickle.dumps(inner)
    assert copy.deepcopy(inner) is inner
    for op in (rafters.add, rafters.silu_mul):
        assert pickle.loads(pickle.dumps(op)) is op


def test_two_bodies_of_one_name_stay_apart(tmp_path, monkeypatch):
    """In two modules, so in two namespaces; their kernels have one name and two texts."""
    for module, factor in (("first_of_two", 2), ("second_of_two", 3)):
        text = f"import rafters\n\n@rafters.elementwise\ndef same_name(x):\n    return x * {factor}\n"
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import first_of_two
    import second_of_two

    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        x = torch.ones(4, device=device)
        for _ in range(2):
            assert first_of_two.same_name(x).tolist() == [2] * 4
            assert second_of_two.same_name(x).tolist() == [3] * 4
    assert pickle.loads(pickle.dumps(second_of_two.same_name)) is second_of_two.same_name
    assert first_of_two.same_name.qualified_name != second_of_two.same_name.qualified_name
