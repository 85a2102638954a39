"""Measures Cenote on a GPU. `python -m gpu --help`; results and goals are in docs/evidence/gpu.md."""
