"""Puts the policies of the suite, and the GPU that is not there, where these tests can use them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from fake_gpu import fake_gpu as fake_gpu
