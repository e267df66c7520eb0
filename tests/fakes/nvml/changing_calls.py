"""The functions of NVML that change something, by their names."""

import re

VERBS = "Set|Clear|Create|Destroy|Modify|Remove|Discover|Reset|ReadWrite|Enable|Disable|Update|PowerSmoothing|Workload"
CHANGERS = re.compile(rf"nvml(?:Device|System|GpuInstance|ComputeInstance|Vgpu|EventSet|Unit)\w*?(?<!Get)(?:{VERBS})")
