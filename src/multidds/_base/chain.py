"""Lines of JSON that end in a checksum (CRC-32) of themselves and of all lines before.

None can change or be missing unnoticed. Behind the last newline of a file is a line that is still being written.
"""

import json
import re
import zlib
from typing import Any

_END = re.compile(rb', "checksum": "([0-9a-f]{8})"\}\Z')


def is_whole(line: bytes) -> bool:
    """Returns whether a line ends in a checksum."""
    return _END.search(line) is not None


class Chain:
    """A writer or a reader of lines, one after another.

    required: whether every line must have a checksum; if not, they may all be without.
    """

    def __init__(self, required: bool = True) -> None:
        self.checksum, self._required = 0, required

    def written(self, content: str) -> str:
        """Returns the next line of a file. content: a JSON object that is not empty, in ASCII."""
        body = content.removesuffix("}")
        self.checksum = zlib.crc32(body.encode("ascii"), self.checksum)
        return f'{body}, "checksum": "{self.checksum:08x}"}}\n'

    def read(self, line: bytes) -> dict[str, Any]:
        """Returns the content of the next line; raises a ValueError with the reason if it is damaged."""
        line = line.removesuffix(b"\r")  # of a copy on Windows
        end = _END.search(line)
        if end is not None:
            checksum = zlib.crc32(line[: end.start()], self.checksum)
            if int(end[1], 16) != checksum:
                raise ValueError("is damaged, or a line before it is missing (its checksum does not fit)")
            self.checksum, self._required = checksum, True
            line = line[: end.start()] + b"}"
        elif self._required:
            raise ValueError("is damaged or of another version (it does not end in a checksum)")
        try:
            content: dict[str, Any] = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError("is not JSON") from None
        return content
