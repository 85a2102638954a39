"""SGLang's HiCache storage on a Cenote region. All servers on a region share their pages.

    sglang serve --enable-hierarchical-cache --hicache-mem-layout page_first_direct
      --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
      '{"backend_name": "cenote", "module_path": "cenote.sglang", "class_name": "CenoteStorage",
        "interface_v1": 1, "region": "shm:kv", "create_size": "64GiB"}'
"""

import sglang

from cenote.sglang.version import check_version

check_version(sglang.__version__)

from cenote.sglang.storage import CenoteStorage  # noqa: E402

__all__ = ["CenoteStorage"]
