"""Peak memory of this process since a moment, as Linux accounts for it."""

from __future__ import annotations

from pathlib import Path

_PROCESSES = Path("/proc")
_SELF = "self"
_RESET_PEAK = "5"
_KIB = 1024


class MemoryWatch:
    """Peak memory relative to the current size. getrusage would not do: a child starts with its parent's peak."""

    def __init__(self) -> None:
        try:
            (_PROCESSES / _SELF / "clear_refs").write_text(_RESET_PEAK, "ascii")
        except OSError:
            self._began_bytes = None
        else:
            self._began_bytes = read_memory("VmRSS")

    def grown_bytes(self) -> int | None:
        """Return the peak growth of the process; None if the system does not report it."""
        peak = read_memory("VmHWM")
        return None if self._began_bytes is None or peak is None else max(0, peak - self._began_bytes)


def read_memory(name: str, process: int | str = _SELF) -> int | None:
    """Return a process's VmRSS or VmHWM; None if the system does not report it."""
    try:
        lines = (_PROCESSES / str(process) / "status").read_text("ascii").splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    kibibytes = next(found, None)
    return None if kibibytes is None else int(kibibytes) * _KIB
