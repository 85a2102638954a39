"""vLLM's KV connector: every vLLM instance that names the same region has the others' prefixes.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "CenoteConnector", "kv_connector_module_path": "cenote.vllm",
      "kv_role": "kv_both", "kv_connector_extra_config": {"region": "shm:kv"}}'
"""

from cenote.vllm.connector import CenoteConnector

__all__ = ["CenoteConnector"]
