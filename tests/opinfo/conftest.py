"""Puts the adapters of this folder, and the policies of the suite, where the tests can import them."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
