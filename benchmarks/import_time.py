"""What `import rafters` adds to `import torch`: the budget is 0.15 s. Run: python benchmarks/import_time.py [rounds]

Each round is a fresh interpreter; the rows are cumulative stages of one program, each timed after the stage before it.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

STAGES = {
    "import torch": "import torch",
    "import rafters": "import rafters",
    "rafters.lang": "rafters.lang",
    "rafters.elementwise": "rafters.elementwise",
    "rafters.ops": "rafters.ops",
    "rafters.tl": "rafters.tl",
}
BUDGET_S = 0.15
SRC = Path(__file__).parents[1] / "src"

PROGRAM = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
seconds = {}
for name, stage in json.loads(sys.argv[2]).items():
    start = time.perf_counter()
    exec(stage, globals())
    seconds[name] = time.perf_counter() - start
print(json.dumps(seconds))
"""


def one_round() -> dict[str, float]:
    command = [sys.executable, "-c", PROGRAM, str(SRC), json.dumps(STAGES)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main(rounds: int = 7) -> None:
    one_round()  # fills the file cache and writes the byte code
    seconds = [one_round() for _ in range(rounds)]
    print(f"{'stage':<20} {'median s':>9} {'min':>7} {'max':>7}   ({rounds} fresh interpreters)")
    for stage in STAGES:
        values = [one[stage] for one in seconds]
        print(f"{stage:<20} {statistics.median(values):9.3f} {min(values):7.3f} {max(values):7.3f}")
    added = statistics.median(one["import rafters"] for one in seconds)
    print(f"import rafters adds {added:.3f} s to import torch; budget {BUDGET_S} s: {'met' if added <= BUDGET_S else 'MISSED'}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
