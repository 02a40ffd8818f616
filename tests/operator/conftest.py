"""Puts the policies of the suite where these tests can import them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
