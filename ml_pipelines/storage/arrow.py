"""The same places as pyarrow sees them, for Ray Data and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ml_pipelines import settings
from ml_pipelines.errors import InvalidInput

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def arrow_filesystem(url: str) -> tuple[FileSystem, str]:
    """A pyarrow file system for a URL, and the root path in it that the URL names.

    Raises InvalidInput for a scheme that pyarrow has no file system for.
    """
    from pyarrow import fs

    scheme, _, rest = url.rstrip("/").partition("://")
    if scheme == "file":
        return fs.LocalFileSystem(), str(Path(rest))
    if scheme == "s3":
        # pyarrow does not read this variable by itself, as every other client does.
        endpoint = settings.s3_endpoint()
        return fs.S3FileSystem(**({"endpoint_override": endpoint} if endpoint else {})), rest
    if scheme == "gs":
        return fs.GcsFileSystem(), rest
    raise InvalidInput(
        "storage URL", url, "can't be read by pyarrow", remedy="Use file://, s3:// or gs://."
    )
