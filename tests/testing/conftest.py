"""Puts the ops of this folder where the tests, and the processes that they start, can import them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
