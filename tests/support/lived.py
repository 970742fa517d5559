"""Something that is started, and closed however it ends."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lived(ABC):
    """A server or several, there for as long as it is entered; one that does not come up is closed as well."""

    @abstractmethod
    def set_up(self) -> None:
        """Return when it serves."""

    @abstractmethod
    def close(self) -> None:
        """Stop it, whatever has come of it."""

    def __enter__(self) -> Self:
        try:
            self.set_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
