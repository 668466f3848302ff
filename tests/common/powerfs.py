#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""
A file system whose power can be cut at any moment, as often as one likes.

    powerfs.py DIRECTORY     mounts it there; then reads lines from its input:
    cut SEED LUCK OTHER      writes what the disk would have now to the new directory OTHER, and
                             says "done".  It goes on as if nothing had happened.

Everything is in memory.  What was not synced may be on the disk or not, each sector of 512 bytes
for itself: LUCK is the part of it that is.  Where a later sector is there and an earlier one is
not, that has zeros, or what it had.  Names are changed in order, and the disk has those changes up
to some moment since a directory was last synced; syncing a file does not help its name.

It speaks the kernel's protocol itself (/dev/fuse, linux/fuse.h): no library is needed.
"""
import ctypes
import errno
import os
import random
import select
import stat
import struct
import sys
import time

SECTOR = 512
SYNC_S = 0.01  # of a file
ROOT = 1

(LOOKUP, FORGET, GETATTR, SETATTR, MKDIR, UNLINK, RMDIR, RENAME, OPEN, READ, WRITE, STATFS,
 RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR, ACCESS, CREATE, INTERRUPT,
 DESTROY, BATCH_FORGET, RENAME2) = (1, 2, 3, 4, 9, 10, 11, 12, 14, 15, 16, 17, 18, 20, 25, 26, 27,
                                    28, 29, 30, 34, 35, 36, 38, 42, 45)
NO_REPLY = (FORGET, BATCH_FORGET, INTERRUPT, DESTROY)
SET_MODE, SET_SIZE = 1, 8  # of SETATTR


class Node:
    """A file or a directory, as programs see it, and as the disk has it."""

    def __init__(self, mode):
        self.mode = mode
        self.names, self.disk_names = {}, {}
        self.data, self.disk = bytearray(), bytearray()
        self.dirty = set()  # sectors

    def touch(self, begin, end):
        self.dirty.update(range(begin // SECTOR, (end + SECTOR - 1) // SECTOR))

    def write(self, at, data):
        if at > len(self.data):
            self.resize(at)
        self.data[at:at + len(data)] = data
        self.touch(at, at + len(data))

    def resize(self, size):
        if size < len(self.data):
            self.touch(size, len(self.data))
            del self.data[size:]
        else:
            self.touch(len(self.data), size)
            self.data.extend(bytes(size - len(self.data)))

    def sector(self, number):
        return bytes(self.data[number * SECTOR:(number + 1) * SECTOR])

    @staticmethod
    def put(disk, sector, data):
        begin = sector * SECTOR
        if len(disk) < begin:
            disk.extend(bytes(begin - len(disk)))
        disk[begin:begin + SECTOR] = data

    def after_cut(self, draw, luck):
        """What the disk has, if the power is cut now."""
        disk = bytearray(self.disk)
        for sector in sorted(self.dirty):
            if draw.random() >= luck:
                continue
            self.put(disk, sector, self.sector(sector))
        if len(disk) > len(self.data) and draw.random() < luck:
            del disk[len(self.data):]
        return disk

    def sync_begin(self):
        """What a sync that begins now is about: {sector: bytes}, and the size."""
        return {sector: self.sector(sector) for sector in self.dirty}, len(self.data)

    def sync_end(self, sectors, size):
        for sector, data in sorted(sectors.items()):
            self.put(self.disk, sector, data)
            if self.sector(sector) == data:
                self.dirty.discard(sector)
        del self.disk[size:]


class PowerFs:
    def __init__(self, directory):
        self.nodes = {ROOT: Node(stat.S_IFDIR | 0o755)}
        self.last = ROOT
        self.syncs = []  # of files, that have begun: [(until, request, node, what it is about)]
        self.journal = []  # changes of names that are not on the disk: [(directory, name, node)]
        self.fd = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.fd},rootmode=40755,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"powerfs", os.fsencode(directory), b"fuse.powerfs", 0, options.encode()):
            raise OSError(ctypes.get_errno(), f"cannot mount on {directory}")

    # ---- names ----

    def change(self, *entries):
        """Changes names, all at once: (directory, name, number of a node or None)."""
        for directory, name, number in entries:
            self.set_name(self.nodes[directory].names, name, number)
        self.journal.append(entries)

    @staticmethod
    def set_name(names, name, number):
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number

    def sync_names(self):
        for entries in self.journal:
            for directory, name, number in entries:
                self.set_name(self.nodes[directory].disk_names, name, number)
        self.journal.clear()

    def make(self, directory, name, mode):
        self.last += 1
        self.nodes[self.last] = Node(mode)
        self.change((directory, name, self.last))
        return self.last

    def find(self, directory, name):
        number = self.nodes[directory].names.get(name)
        if number is None:
            raise FileNotFoundError(errno.ENOENT, name)
        return number

    # ---- the power is cut ----

    def cut(self, seed, luck, other):
        draw = random.Random(seed)
        names = {number: dict(node.disk_names) for number, node in self.nodes.items()}
        for entries in self.journal[:round(len(self.journal) * min(1, luck * 2 * draw.random()))]:
            for directory, name, number in entries:
                self.set_name(names[directory], name, number)
        self.put(ROOT, other, names, draw, luck)

    def put(self, number, path, names, draw, luck):
        node = self.nodes[number]
        if not stat.S_ISDIR(node.mode):
            with open(path, "wb") as f:
                f.write(node.after_cut(draw, luck))
            return
        os.mkdir(path)
        for name, child in sorted(names[number].items()):
            self.put(child, os.path.join(os.fsencode(path), name), names, draw, luck)

    # ---- replies ----

    def attr(self, number):
        node = self.nodes[number]
        size = len(node.data)
        return struct.pack("<6Q10I", number, size, (size + 511) // 512, 0, 0, 0, 0, 0, 0,
                           node.mode, 1, 0, 0, 0, 4096, 0)

    def entry(self, number):
        return struct.pack("<4Q2I", number, 0, 0, 0, 0, 0) + self.attr(number)

    def attr_out(self, number):
        return struct.pack("<Q2I", 0, 0, 0) + self.attr(number)

    def directory(self, number, offset, size):
        out = b""
        names = list(self.nodes[number].names.items())
        for i, (name, child) in enumerate(names[offset:], offset + 1):
            entry = struct.pack("<2Q2I", child, i, len(name), self.nodes[child].mode >> 12) + name
            entry += bytes(-len(entry) % 8)
            if len(out) + len(entry) > size:
                break
            out += entry
        return out

    def set_attr(self, number, body):
        valid, size = struct.unpack_from("<I12xQ", body)
        if valid & SET_SIZE:
            self.nodes[number].resize(size)
        if valid & SET_MODE:
            mode, = struct.unpack_from("<I", body, 68)
            self.nodes[number].mode = stat.S_IFMT(self.nodes[number].mode) | stat.S_IMODE(mode)
        return self.attr_out(number)

    def rename(self, number, target, names):
        old, new = names.split(b"\0")[:2]
        self.change((number, old, None), (target, new, self.find(number, old)))
        return b""

    def create(self, number, body):
        mode, = struct.unpack_from("<4xI", body)
        name = body[16:].split(b"\0")[0]
        made = self.make(number, name, stat.S_IFREG | stat.S_IMODE(mode))
        return self.entry(made) + struct.pack("<Q2I", 0, 0, 0)

    def remove(self, number, name):
        self.find(number, name)
        self.change((number, name, None))
        return b""

    def execute(self, opcode, number, body):
        node = self.nodes[number] if number else None
        name = body.split(b"\0")[0]
        if opcode == INIT:
            return struct.pack("<4I2H2I2HI7I", 7, 31, 1 << 17, 1 << 5, 16, 12, 1 << 17, 1, 0, 0, 0,
                               *[0] * 7)
        if opcode == LOOKUP:
            return self.entry(self.find(number, name))
        if opcode == GETATTR:
            return self.attr_out(number)
        if opcode == SETATTR:
            return self.set_attr(number, body)
        if opcode == MKDIR:
            return self.entry(self.make(number, body[8:].split(b"\0")[0], stat.S_IFDIR | 0o755))
        if opcode in (UNLINK, RMDIR):
            return self.remove(number, name)
        if opcode == RENAME:
            return self.rename(number, *struct.unpack_from("<Q", body), body[8:])
        if opcode == RENAME2:
            return self.rename(number, *struct.unpack_from("<Q", body), body[16:])
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<Q2I", 0, 0, 0)
        if opcode == CREATE:
            return self.create(number, body)
        if opcode in (READ, READDIR):
            offset, size = struct.unpack_from("<8xQI", body)
            return bytes(node.data[offset:offset + size]) if opcode == READ else \
                self.directory(number, offset, size)
        if opcode == WRITE:
            offset, size = struct.unpack_from("<8xQI", body)
            node.write(offset, body[40:40 + size])
            return struct.pack("<2I", size, 0)
        if opcode == STATFS:
            return struct.pack("<5Q4I6I", *[1 << 20] * 5, 4096, 255, 4096, 0, *[0] * 6)
        if opcode == FSYNCDIR:
            self.sync_names()
        elif opcode not in (RELEASE, FLUSH, RELEASEDIR, ACCESS):
            raise OSError(errno.ENOSYS, "")
        return b""

    def serve_one(self):
        request = os.read(self.fd, (1 << 17) + 4096)
        _, opcode, unique, number = struct.unpack_from("<2I2Q", request)
        if opcode == FSYNC:
            self.syncs.append((time.monotonic() + SYNC_S, unique, self.nodes[number],
                               self.nodes[number].sync_begin()))
            return
        error, out = 0, b""
        try:
            out = self.execute(opcode, number, request[40:])
        except OSError as e:
            error = -e.errno
        if opcode not in NO_REPLY:
            self.reply(unique, error, out)

    def reply(self, unique, error=0, out=b""):
        os.write(self.fd, struct.pack("<IiQ", 16 + len(out), error, unique) + out)

    def end_syncs(self):
        """Ends those that are due; returns the seconds until the next one is, or None."""
        while self.syncs and self.syncs[0][0] <= time.monotonic():
            _, unique, node, what = self.syncs.pop(0)
            node.sync_end(*what)
            self.reply(unique)
        return max(0, self.syncs[0][0] - time.monotonic()) if self.syncs else None

    def serve(self):
        while True:
            ready, _, _ = select.select([self.fd, sys.stdin], [], [], self.end_syncs())
            if self.fd in ready:
                self.serve_one()
            if sys.stdin in ready:
                words = sys.stdin.readline().split()
                if not words:
                    return
                self.cut(int(words[1]), float(words[2]), words[3])
                print("done", flush=True)


def main():
    directory = sys.argv[1]
    fs = PowerFs(directory)
    print("mounted", flush=True)
    try:
        fs.serve()
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(directory), 2)  # MNT_DETACH


if __name__ == "__main__":
    main()
