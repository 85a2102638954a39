"""Loggers of the connector."""

from __future__ import annotations

import logging

from vllm.logger import init_logger


def logger_of(module: str) -> logging.Logger:
    """The logger of a module of `cenote.vllm`, such as `vllm.cenote.connector`.

    vLLM configures only its own hierarchy: a logger outside of `vllm` drops INFO lines."""
    return init_logger(f"vllm.cenote.{module.removeprefix('cenote.vllm.')}")
