"""The process that interprets kernels: asked once for each op, while the others are checked here.

Triton decides at import whether it interprets, so this cannot happen in the process that compiles.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from rafters.errors import RaftersError
from rafters.lang import has_triton
from rafters.operator.op import Op
from rafters.testing.calls import Call
from rafters.testing.examine import Bounds
from rafters.testing.kernel_checks import KERNEL
from rafters.testing.report import FAILED, SKIPPED, Outcome, from_json

_PROGRAM = "from rafters.testing import worker; worker.main()"
_PATIENCE = 300.0  # seconds without an answer


class Worker:
    """One interpreting process, started when it is first asked, and anew if an op's kernel ended it."""

    def __init__(self, quick: bool, bounds: Bounds, only: Sequence[str] = ()) -> None:
        self._settings = {"quick": quick, "bounds": asdict(bounds), "only": list(only)}
        self._process: subprocess.Popen[str] | None = None
        self._waiting: dict[str, dict[str, str]] = {}  # op -> where it stands, in the order of the questions
        self._answers: dict[str, list[Outcome]] = {}
        self._lines: Queue[str | None] = Queue()
        self._doing = ""

    def ask(self, op: Op) -> None:
        """Sends an op on its way; its answer is fetched later."""
        name = op.qualified_name
        if name in self._waiting or name in self._answers:
            return
        where = located(op)
        if not has_triton():
            self._answers[name] = [_skipped("triton is not installed, so its interpreter is not there")]
        elif isinstance(where, str):
            self._answers[name] = [_skipped(where)]
        else:
            self._waiting[name] = where
            self._send(name, where)

    def answer(self, op: Op) -> list[Outcome]:
        """What the interpreted kernels of an op kept of their promises; waits for it. Asked again, it is looked at again."""
        name = op.qualified_name
        self.ask(op)
        while name not in self._answers:
            try:
                line = self._lines.get(timeout=_PATIENCE)
            except Empty:
                self._end(f"the interpreter gave no answer in {_PATIENCE:.0f} s")
                continue
            if line is None:
                self._end("the interpreting process died")
                continue
            message = json.loads(line)
            if "doing" in message:
                self._doing = message["doing"]
            else:
                self._waiting.pop(message["name"], None)
                self._answers[message["name"]] = [from_json(record) for record in message["outcomes"]]
        return self._answers.pop(name)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.terminate()
            self._process.wait()

    def _end(self, reason: str) -> None:
        """The op whose turn it was has failed; another process goes on with those behind it."""
        if self._process is not None:
            self._process.kill()
            reason += f" (status {self._process.wait()})"
        name = next(iter(self._waiting))
        del self._waiting[name]
        self._answers[name] = [Outcome("every call runs", KERNEL, FAILED, reason=reason, code=self._doing)]
        self._process, self._lines = None, Queue()
        for other, where in self._waiting.items():
            self._send(other, where)

    def _send(self, name: str, where: dict[str, str]) -> None:
        process = self._started()
        try:
            if process.stdin is not None:
                process.stdin.write(json.dumps({"name": name, **self._settings, **where}) + "\n")
                process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died: whoever waits for an answer sees it, and asks again

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is None:
            path = os.pathsep.join([str(Path(__file__).parents[2]), *(p or os.getcwd() for p in sys.path)])
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            threading.Thread(target=_read, args=(self._process, self._lines), daemon=True).start()
        return self._process


def _read(process: "subprocess.Popen[str]", lines: "Queue[str | None]") -> None:
    for line in process.stdout or ():
        lines.put(line)
    lines.put(None)


def _skipped(reason: str) -> Outcome:
    return Outcome("every call runs", KERNEL, SKIPPED, reason=reason)


def located(op: Op) -> dict[str, str] | str:
    """Where another process finds the op; or, in words, why it cannot."""
    function = op.spec.body.function
    module, file = function.__module__, function.__code__.co_filename
    if "<locals>" in function.__qualname__:
        return "the op is made inside a function, where another process (Triton's interpreter) cannot find it"
    if not Path(file).is_file():
        return "the op stands in no file, so another process (Triton's interpreter) cannot find it"
    return {"module": module, "file": str(Path(file).resolve()), "op": op.spec.name, "function": function.__qualname__}


def find(module: str, file: str, op: str, function: str) -> Op:
    """The op of this name and function in a module, or in a file that no module of the path is."""
    for value in vars(_loaded(module, Path(file))).values():
        if isinstance(value, Op) and value.spec.name == op and value.spec.body.function.__qualname__ == function:
            return value
    raise RaftersError(f"{file} holds no op {op} at its top level, so another process cannot find it")


def _loaded(module: str, file: Path) -> Any:
    try:
        found = None if module == "__main__" else importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is not None and found.origin and Path(found.origin).resolve() == file:
        return importlib.import_module(module)
    spec = importlib.util.spec_from_file_location(module, file)
    if spec is None or spec.loader is None:
        raise RaftersError(f"{file} cannot be imported as Python")
    own = "rafters_checked_main" if module == "__main__" else module
    loaded = sys.modules[own] = importlib.util.module_from_spec(spec)
    if module == "__main__":
        loaded.__name__ = own
    sys.path.insert(0, str(file.parent))
    spec.loader.exec_module(loaded)
    return loaded


def main() -> None:
    """Answers questions from standard input, a line each; whatever an op's file prints goes to standard error."""
    import warnings

    from rafters.testing import kernel_checks

    warnings.filterwarnings("ignore")  # numpy's, of overflows that are meant
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def announce(call: Call) -> None:
        """What is about to run: if it ends this process, the other one can say what did."""
        answers.write(json.dumps({"doing": call.code()}) + "\n")
        answers.flush()

    for line in sys.stdin:
        question = json.loads(line)
        try:
            op = find(*(question[k] for k in ("module", "file", "op", "function")))
            outcomes = kernel_checks.checked(op, question["quick"], Bounds(**question["bounds"]), announce, question["only"])
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}"
            outcomes = [Outcome("every call runs", KERNEL, FAILED, reason=text[:500])]
        answers.write(json.dumps({"name": question["name"], "outcomes": [asdict(o) for o in outcomes]}) + "\n")
        answers.flush()
