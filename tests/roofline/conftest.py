"""Puts the fakes of this folder where its tests can import them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
