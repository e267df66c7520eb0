"""The names that other programs know Autoclave by: in labels, taints, annotations, devices and receipts.

Once they are published they stay. So they stand below one domain, and all files take it from here: a test finds others.
"""

from __future__ import annotations

DOMAIN = "autoclave.internal"  # a placeholder: below .internal, which is for private use, nobody can own a name
DRIVER = f"gpu.{DOMAIN}"  # of DRA, its DeviceClass, and the prefix of its taint
CHECKPOINT = f"{DOMAIN}/checkpoint"  # the annotation of a Node
PREDICATE_TYPE = f"tag:{DOMAIN},2026:receipts/v1"  # of a receipt; a name, not an address
CLOSING_TYPE = f"tag:{DOMAIN},2026:closings/v1"  # of a closing receipt
