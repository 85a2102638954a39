"""LMCache's L2 storage on a Cenote region. All LMCache servers on a region share their objects.

    lmcache server --l1-size-gb 20 --l2-adapter '{"type": "plugin",
      "module_path": "cenote.lmcache", "class_name": "CenoteL2Adapter", "adapter_params":
      {"region": "shm:kv", "create_size": "64GiB", "model_folder": "MODEL"}}'
"""

from cenote.lmcache.adapter import CenoteL2Adapter

__all__ = ["CenoteL2Adapter"]
