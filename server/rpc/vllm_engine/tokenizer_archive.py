"""The TokenizerArchive: the files of a tokenizer in a zip, for a gateway that has them not on its own disk."""

import hashlib
import io
import zipfile
from collections.abc import Iterator

from smg_grpc_proto.generated import common_pb2 as pb

from server.engine.tokenizer import Tokenizer

CHUNK_BYTES = 64 * 1024


class TokenizerArchive:
    """Making it compresses megabytes: work for a thread. The same tokenizer makes the same bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in tokenizer.files():
                archive.writestr(zipfile.ZipInfo(file.name), file.content, zipfile.ZIP_DEFLATED)
        self._bytes = buffer.getvalue()
        self._sha256 = hashlib.sha256(self._bytes).hexdigest()

    def chunks(self) -> Iterator[pb.GetTokenizerChunk]:
        """The last one has the sum of all."""
        for start in range(0, len(self._bytes), CHUNK_BYTES):
            is_last = start + CHUNK_BYTES >= len(self._bytes)
            data = self._bytes[start : start + CHUNK_BYTES]
            yield pb.GetTokenizerChunk(data=data, sha256=self._sha256 if is_last else "")
