"""The machine on which the benchmark runs."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(device: str = "cpu") -> dict[str, Any]:
    """The machine's processor, memory and system, and its GPU if that is the device."""
    cpu, memory = platform.processor(), None
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        pass
    return {
        "cpu": cpu,
        "architecture": platform.machine(),
        "cores": cores(),
        "memory_bytes": memory,
        "system": platform.system(),
        **({"gpu": gpu()} if device == "cuda" else {}),
    }


def gpu() -> str:
    """The name of the GPU."""
    from numba import cuda

    name = cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else str(name)
