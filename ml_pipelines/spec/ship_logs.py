"""Runs beside Ray in its pod: writes what Ray's log files say to stdout, each line with its place.

Given to a bare `python3 -c` as text: standard library only, Python 3.9. A record is one line,
`TAG OFFSET TEXT`: which log, where the line begins in it, in bytes, and the line. With `+` instead
of the second blank the line goes on in the next record, for it is long or has no end yet. What
begins with `#` is a comment; `# TAG ends at OFFSET` says that nobody writes this log any more.

On a head there is one log for each driver, its tag the CRC of the file's name; on a worker the
files of all processes are one log, each line with who wrote it, as Ray shows them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import time
import zlib
from pathlib import Path

LOGS = Path("/tmp/ray/session_latest/logs")  # noqa: S108 - where Ray keeps them
BLOCK = 1 << 16
PIECE = 8000  # bytes of a line in one record: container runtimes cut lines of 16 KiB
PART = 1 << 18  # bytes of a worker's line that wait for its end
SCAN_S = 1.0  # between two looks for new, replaced and truncated files
BUSY_S, IDLE_S = 0.1, 0.25  # between two reads
ALIVE_S = 30.0  # so often a comment is written where nothing else is: an open stream is not dead
REST_S = 60.0  # a worker's file that has not grown for so long is closed until it does
BEFORE_S = 5.0  # Ray begins after this: what is older was written beside a container before
QUIET_S = 0.5  # how long a line without its end waits for it
LEAVE_S = 12.0  # how long after SIGTERM Ray may go on writing
MODIFIED, CLOSED = 0x2, 0x8  # inotify(7): IN_MODIFY, IN_CLOSE_WRITE
EVENT = struct.Struct("iIII")  # struct inotify_event: descriptor, mask, cookie, length of a name


class File:
    """One file, read on also where it is truncated or replaced; `at` is the unsent part's offset.

    `base` is what the offsets of a replaced file count from.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY)
        self.part = b""
        self.at = 0
        self.label = b""
        self.grew = time.monotonic()
        self.left = (0, 0, 0)  # while it is closed: device, inode, how far it was read
        self.ends = False  # its writers have closed it, and nothing was written since

    def read(self) -> bytes:
        """The next block; empty at the end for now."""
        if self.fd < 0:
            return b""
        data = os.read(self.fd, BLOCK)
        if data:
            self.grew = time.monotonic()
        return data

    def renew(self) -> None:
        """At its end: begin anew where the file is another one, or shorter than what was read."""
        if self.fd < 0:
            self.wake()
            return
        here = os.lseek(self.fd, 0, os.SEEK_CUR)
        old = os.fstat(self.fd)
        if old.st_size < here:
            os.lseek(self.fd, 0, os.SEEK_SET)
        try:
            new = self.path.stat()
        except OSError:
            return
        if (new.st_dev, new.st_ino) != (old.st_dev, old.st_ino) and old.st_size <= here:
            fd = os.open(self.path, os.O_RDONLY)
            os.close(self.fd)
            self.fd = fd

    def rest(self) -> None:
        """Give its descriptor back, if all of it is read."""
        if self.fd < 0:
            return
        here, now = os.lseek(self.fd, 0, os.SEEK_CUR), os.fstat(self.fd)
        if now.st_size == here:
            self.left = (now.st_dev, now.st_ino, here)
            os.close(self.fd)
            self.fd = -1

    def wake(self) -> None:
        """Open it again where it has grown, or begins anew."""
        dev, ino, here = self.left
        try:
            new = self.path.stat()
        except OSError:
            return
        same = (new.st_dev, new.st_ino) == (dev, ino)
        if not same or new.st_size != here:
            self.fd = os.open(self.path, os.O_RDONLY)
            os.lseek(self.fd, here if same and new.st_size > here else 0, os.SEEK_SET)
            self.grew = time.monotonic()


def records(tag: bytes, at: int, data: bytes) -> list[bytes]:
    """The records of whole lines that begin at `at`."""
    out = []
    for line in data[:-1].split(b"\n"):
        size = len(line)
        if size > PIECE:
            last = (size - 1) // PIECE * PIECE
            out += pieces(tag, at, line[:last])
            out.append(b"%s %d %s\n" % (tag, at + last, line[last:]))
        else:
            out.append(b"%s %d %s\n" % (tag, at, line))
        at += size + 1
    return out


def pieces(tag: bytes, at: int, data: bytes) -> list[bytes]:
    """The records of a part of a line."""
    cuts = range(0, len(data), PIECE)
    return [b"%s %d+%s\n" % (tag, at + cut, data[cut : cut + PIECE]) for cut in cuts]


class Head:
    """The drivers' logs, one for each."""

    pattern = "job-driver-*"
    ends = (".log",)
    rest_s = float("inf")  # they are few, and told as they come
    tells_ends = True

    def anew(self) -> list[bytes]:
        """Nothing: each line has its place in its file."""
        return []

    def first(self, name: bytes) -> list[bytes]:
        """A comment: whose tag it is."""
        return [b"# %08x %s\n" % (zlib.crc32(name), name)]

    def take(self, file: File, data: bytes) -> list[bytes]:
        """Records of what came."""
        tag = b"%08x" % zlib.crc32(file.path.name.encode())
        data = file.part + data
        end = data.rfind(b"\n") + 1
        out = records(tag, file.at, data[:end]) if end else []
        file.at += end
        file.part = data[end:]
        if len(file.part) >= PIECE:
            out += self.close(file)
        return out

    def close(self, file: File) -> list[bytes]:
        """Records of a line that has no end yet."""
        tag = b"%08x" % zlib.crc32(file.path.name.encode())
        out = pieces(tag, file.at, file.part)
        file.at += len(file.part)
        file.part = b""
        return out

    last = close

    def end(self, file: File) -> list[bytes]:
        """A comment: nobody writes it any more."""
        return [b"# %08x ends at %d\n" % (zlib.crc32(file.path.name.encode()), file.at)]


class Worker:
    """The logs of all of a node's processes, as one."""

    pattern = "worker-*"
    ends = (".out", ".err")
    rest_s = REST_S
    tells_ends = False

    def __init__(self) -> None:
        self.at = 0

    def anew(self) -> list[bytes]:
        """A line for who read on: what was there is merged again, in another order."""
        line = (
            b"[the log container was started again: "
            b"lines before this one may be missing or stand twice]\n"
        )
        made = records(b"worker", self.at, line) if self.at else []
        self.at += len(line) if made else 0
        return made

    def first(self, _name: bytes) -> list[bytes]:
        """Nothing: each line says who wrote it."""
        return []

    def take(self, file: File, data: bytes) -> list[bytes]:
        """Records of the whole lines that came."""
        *lines, file.part = (file.part + data).split(b"\n")
        if len(file.part) > PART:
            lines.append(file.part)
            file.part = b""
        return self.lines(file, lines)

    def close(self, _file: File) -> list[bytes]:
        """Nothing: a line without its end would be torn by the next file's."""
        return []

    def end(self, _file: File) -> list[bytes]:
        """Nothing: others of the node's processes write on."""
        return []

    def last(self, file: File) -> list[bytes]:
        """Records of what is left when all is over."""
        return self.lines(file, [file.part] if file.part else [])

    def lines(self, file: File, lines: list[bytes]) -> list[bytes]:
        """Records of lines of one process."""
        pid = file.path.stem.rsplit("-", 1)[-1].encode()
        out = []
        for line in lines:
            # What Ray writes for its own log monitor: whose the next lines are.
            if line.startswith((b":actor_name:", b":task_name:")):
                file.label = line.split(b":", 2)[2] + b" "
            elif not line.startswith(b":job_id:"):
                out.append(b"(%spid=%s) %s\n" % (file.label, pid, line))
        merged = b"".join(out)
        made = records(b"worker", self.at, merged) if merged else []
        self.at += len(merged)
        return made


def ray_lives() -> bool:
    """Whether a raylet listens in this pod: containers of a pod share their network."""
    try:
        return b"/sockets/raylet" in Path("/proc/net/unix").read_bytes()
    except OSError:
        return False


def began_before(logs: Path) -> bool:
    """Whether Ray was here before this process: then this container was started again."""
    try:
        return any(time.time() - path.stat().st_mtime > BEFORE_S for path in logs.iterdir())
    except OSError:
        return False


class Writers:
    """Learns from the kernel that nobody has a file open for writing any more.

    A driver's output is one open file that its children share: it is closed by the last of them.
    Where there is no inotify nothing is ever learned.
    """

    def __init__(self) -> None:
        self.watched: dict[int, File] = {}
        try:
            self.libc = ctypes.CDLL(None)
            self.fd = int(self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except (OSError, AttributeError):
            self.fd = -1

    def watch(self, file: File) -> None:
        """Also where another file lies at its path by now."""
        if self.fd >= 0:
            path = os.fsencode(file.path)
            watch = int(self.libc.inotify_add_watch(self.fd, path, MODIFIED | CLOSED))
            self.watched[watch] = file

    def learn(self) -> None:
        """Set `ends` of the files by what happened since."""
        try:
            data = os.read(self.fd, BLOCK) if self.fd >= 0 else b""
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, mask, _, length = EVENT.unpack_from(data, at)
            at += EVENT.size + length
            file = self.watched.get(watch)
            if file is not None and mask & (MODIFIED | CLOSED):
                file.ends = bool(mask & CLOSED)


class Shipper:
    """Follows all files of one pod."""

    def __init__(self, role: str, logs: Path, out: int) -> None:
        self.kind: Head | Worker = Head() if role == "head" else Worker()
        self.logs, self.out = logs, out
        self.files: dict[Path, File] = {}
        self.writers = Writers()
        self.again = began_before(logs)
        self.grew = 0.0
        self.wrote = time.monotonic()

    def scan(self) -> None:
        """Find new files, and those that begin anew."""
        now = time.monotonic()
        for file in self.files.values():
            file.renew()
            self.watch(file)
            if now - file.grew > self.kind.rest_s:
                file.rest()
        for path in sorted(self.logs.resolve().glob(self.kind.pattern)):
            if path.suffix in self.kind.ends and path not in self.files:
                self.files[path] = File(path)
                self.watch(self.files[path])
                self.write(self.kind.first(path.name.encode()))

    def watch(self, file: File) -> None:
        """Learn of its end, where anybody is told of it."""
        if self.kind.tells_ends:
            self.writers.watch(file)

    def step(self) -> bool:
        """One block of each file; whether anything came."""
        now, moved = time.monotonic(), False
        self.writers.learn()  # before the reading: what is read to its end then is all
        for file in self.files.values():
            data = file.read()
            if data:
                self.write(self.kind.take(file, data))
                moved = True
            elif file.ends:
                file.ends = False
                self.write([*self.kind.close(file), *self.kind.end(file)])
            elif file.part and now - file.grew > QUIET_S:
                self.write(self.kind.close(file))
        if self.again and self.files and not moved:
            # Only now: it must stand behind all that anybody has read, or it is passed over.
            self.again = False
            self.write(self.kind.anew())
        self.grew = now if moved else self.grew
        if now - self.wrote > ALIVE_S:
            self.write([b"#\n"])
        return moved

    def finish(self) -> None:
        """Write what is left, also of lines without their end."""
        self.scan()
        while self.step():
            pass
        for file in self.files.values():
            self.write(self.kind.last(file))

    def write(self, out: list[bytes]) -> None:
        """All of it, at the reader's pace."""
        data = memoryview(b"".join(out))
        if data:
            self.wrote = time.monotonic()
        while data:
            data = data[os.write(self.out, data) :]


def main(role: str) -> None:
    """Ship until SIGTERM, and what is left then."""
    told: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(time.monotonic()))
    shipper = Shipper(role, LOGS, 1)
    scanned = 0.0
    while not told or (ray_lives() and time.monotonic() - told[0] < LEAVE_S):
        now = time.monotonic()
        try:
            if now - scanned >= SCAN_S:
                scanned = now
                shipper.scan()
            if shipper.step():
                continue
        except OSError as error:  # a log never makes its pod fail
            sys.stderr.write(f"# {error}\n")
        time.sleep(BUSY_S if now - shipper.grew < 5 else IDLE_S)
    shipper.finish()


if __name__ == "__main__":
    main(sys.argv[1])
