"""The program under test, its helpers, and the waits of the Python package's tests can be imported."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(_ROOT / "xtask/model"), str(_ROOT / "crates/py/tests")]
