"""TensorRT-LLM's KV cache connector on a Cenote region. All engines on a region share their blocks.

    kv_connector_config:
      connector_module: cenote.tensorrt_llm
      connector_scheduler_class: CenoteScheduler
      connector_worker_class: CenoteWorker

Settings are JSON in the environment variable `CENOTE_TENSORRT_LLM`. See docs/guides/tensorrt-llm.md.
"""

from cenote.tensorrt_llm.connector import CenoteScheduler, CenoteWorker

__all__ = ["CenoteScheduler", "CenoteWorker"]
