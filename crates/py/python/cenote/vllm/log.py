"""Loggers of the connector."""

from __future__ import annotations

import logging

from vllm.logger import init_logger


def logger_of(module: str) -> logging.Logger:
    """The logger of a module of `cenote.vllm`, such as `vllm.cenote.connector`.

    vLLM configures its own hierarchy only: INFO lines of a logger outside of `vllm` are dropped."""
    return init_logger(f"vllm.cenote.{module.removeprefix('cenote.vllm.')}")
