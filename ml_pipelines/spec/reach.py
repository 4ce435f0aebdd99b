"""Which storage pods can reach: far stores, and folders of the platform's shared volumes."""

from __future__ import annotations

from pathlib import PurePosixPath

from ml_pipelines.errors import InvalidInput
from ml_pipelines.spec.pools import Pools

_FAR = ("s3://", "gs://")


def shared_folder(variable: str, url: str, pools: Pools) -> str | None:
    """The volume's folder that a `file://` URL lies in; None for a store that is far.

    `variable` is what the URL was set by. Raises InvalidInput for a place that no pod can see.
    """
    if url.startswith(_FAR):
        return None
    path = PurePosixPath(url.removeprefix("file://"))
    if url.startswith("file://"):
        for volume in pools.volumes:
            within = ".." not in path.parts and path.is_relative_to(volume.path)
            if within and not volume.read_only:
                return volume.path
    volumes = " or ".join(f"file://{each.path}" for each in pools.volumes if not each.read_only)
    raise InvalidInput(
        variable,
        url,
        "can't be seen by pods",
        remedy="Use s3:// or gs://" + (f", or a place below {volumes}." if volumes else ", or name "
        "a shared volume in the platform file."),
    )  # fmt: skip
