"""KV connector for vLLM. All vLLM instances on a region share their prefixes.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "CenoteConnector",
      "kv_connector_module_path": "cenote.vllm", "kv_role": "kv_both",
      "kv_connector_extra_config": {"region": "shm:kv"}}'
"""

import contextlib

import vllm

from cenote.vllm.version import check_version

# Check before the imports that exist in some versions of vLLM only.
check_version(vllm.__version__)

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402

from cenote.vllm.connector import CenoteConnector  # noqa: E402

__all__ = ["CenoteConnector"]


def _register() -> None:
    """Registers the connector's name. MultiConnector looks up the class of its counters by name."""
    register = getattr(KVConnectorFactory, "register_connector", None)
    if register is None:
        return
    # Raised if the name is already registered.
    with contextlib.suppress(ValueError):
        register("CenoteConnector", "cenote.vllm", "CenoteConnector")


_register()
