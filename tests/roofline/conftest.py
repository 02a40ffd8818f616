"""Puts the fakes of this folder, and the scripts of benchmarks/ that its tests hold, where they can be imported."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parents[1] / "benchmarks")]
