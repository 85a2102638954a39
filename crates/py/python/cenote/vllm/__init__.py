"""vLLM's KV connector: every vLLM instance that names the same region has the others' prefixes.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "CenoteConnector", "kv_connector_module_path": "cenote.vllm",
      "kv_role": "kv_both", "kv_connector_extra_config": {"region": "shm:kv"}}'
"""

import contextlib

import vllm

from cenote.vllm.version import check_version

# Before anything is imported that only some versions have.
check_version(vllm.__version__)

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402

from cenote.vllm.connector import CenoteConnector  # noqa: E402

__all__ = ["CenoteConnector"]


def _register() -> None:
    """Tells vLLM the connector's name, by which MultiConnector looks for whoever reads its counters."""
    register = getattr(KVConnectorFactory, "register_connector", None)
    if register is None:
        return
    # If it is known already.
    with contextlib.suppress(ValueError):
        register("CenoteConnector", "cenote.vllm", "CenoteConnector")


_register()
