# SPDX-License-Identifier: BSD-2-Clause
"""The part of libbpf that the benchmark scripts need.

Loads programs of an object on the maps of a running store; not with bpftool, which looks for maps
that are pinned by name in /sys/fs/bpf itself, whatever it is told. And reads where the functions
and lines of a loaded program lie.
"""
import ctypes
import os
import socket
from contextlib import contextmanager
from pathlib import Path

from harness import die

PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
POINTERS = ("bpf_object__open", "bpf_object__next_map", "bpf_object__next_program",
            "bpf_object__find_map_by_name", "btf__load_from_kernel_by_id")
STRINGS = ("bpf_map__name", "bpf_map__pin_path", "bpf_program__name", "btf__name_by_offset")
U32, U64 = ctypes.c_uint32, ctypes.c_uint64


def load_library():
    try:
        lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        die("libbpf.so.1 is missing: run scripts/setup.sh")
    for name in POINTERS:
        getattr(lib, name).restype = ctypes.c_void_p
    for name in STRINGS:
        getattr(lib, name).restype = ctypes.c_char_p
    return lib


def each(following, thing):
    """The maps or programs of an object."""
    one = following(thing, None)
    while one:
        yield ctypes.c_void_p(one)
        one = following(thing, ctypes.c_void_p(one))


def use_map(lib, one, pins):
    """Makes the object use the store's map of this name."""
    path = pins / lib.bpf_map__name(one).decode()
    fd = lib.bpf_obj_get(bytes(path))
    if fd < 0:
        die(f"{path}: {os.strerror(ctypes.get_errno())}")
    failed = lib.bpf_map__reuse_fd(one, fd) or lib.bpf_map__set_pin_path(one, None)
    os.close(fd)
    if failed:
        die(f"{path} is not as the program has it: {os.strerror(-failed)}")


def load_programs(lib, path, names, pins):
    """Loads these XDP programs of the object file on the maps in `pins`: it, {name: program}."""
    obj = lib.bpf_object__open(bytes(path))
    if not obj:
        die(f"{path}: {os.strerror(ctypes.get_errno())}")
    obj = ctypes.c_void_p(obj)
    for one in each(lib.bpf_object__next_map, obj):
        if lib.bpf_map__pin_path(one):
            use_map(lib, one, pins)
    programs = {lib.bpf_program__name(p).decode(): p
                for p in each(lib.bpf_object__next_program, obj)}
    for name, program in programs.items():
        lib.bpf_program__set_autoload(program, ctypes.c_bool(name in names))
    failed = lib.bpf_object__load(obj)
    if failed:
        die(f"the kernel refuses {path}: {os.strerror(-failed)}")
    return obj, programs


def pin(lib, program, path):
    failed = lib.bpf_program__pin(program, bytes(path))
    if failed:
        die(f"cannot pin {path.name}: {os.strerror(-failed)}")


def pin_programs(path, names, pins, directory):
    """
    Loads these XDP programs of the object file on the maps in `pins`; pins them in `directory`.
    """
    lib = load_library()
    obj, programs = load_programs(lib, path, names, pins)
    directory.mkdir(exist_ok=True)
    for name in names:
        pin(lib, programs[name], directory / name)
    lib.bpf_object__close(obj)
    return [Path(directory) / name for name in names]


@contextmanager
def network(path):
    """Inside this network namespace; of this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net", "rb") as own, open(path, "rb") as other:
        if libc.setns(other.fileno(), 0):
            die(f"cannot enter {path}: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            libc.setns(own.fileno(), 0)


class DevmapValue(ctypes.Structure):
    """struct bpf_devmap_val of linux/bpf.h."""
    _fields_ = [("ifindex", U32), ("prog_fd", ctypes.c_int)]


def pin_redirecting(path, ingress, queue, pins, directory, bed):
    """
    The program `ingress` redirects to the bed's interface by the DEVMAP xkv_self of its own; it is
    pinned under the name of the program that runs there, `queue`.
    """
    lib = load_library()
    obj, programs = load_programs(lib, path, (ingress, queue), pins)
    devmap = lib.bpf_map__fd(ctypes.c_void_p(lib.bpf_object__find_map_by_name(obj, b"xkv_self")))
    with network(bed.namespace("server")):
        value = DevmapValue(socket.if_nametoindex(bed.interface),
                            lib.bpf_program__fd(programs[queue]))
        failed = lib.bpf_map_update_elem(devmap, ctypes.byref(U32(0)), ctypes.byref(value),
                                         U64(0))
    if failed:
        die(f"cannot redirect to {queue}: {os.strerror(-failed)}")
    pin(lib, programs[ingress], directory / queue)
    lib.bpf_object__close(obj)
    return directory / queue


class ProgInfo(ctypes.Structure):
    """The first fields of struct bpf_prog_info of linux/bpf.h."""
    _fields_ = [
        ("type", U32), ("id", U32), ("tag", ctypes.c_uint8 * 8), ("jited_prog_len", U32),
        ("xlated_prog_len", U32), ("jited_prog_insns", U64), ("xlated_prog_insns", U64),
        ("load_time", U64), ("created_by_uid", U32), ("nr_map_ids", U32), ("map_ids", U64),
        ("name", ctypes.c_char * 16), ("ifindex", U32), ("gpl_compatible", U32), ("netns_dev", U64),
        ("netns_ino", U64), ("nr_jited_ksyms", U32), ("nr_jited_func_lens", U32),
        ("jited_ksyms", U64), ("jited_func_lens", U64), ("btf_id", U32),
        ("func_info_rec_size", U32), ("func_info", U64), ("nr_func_info", U32),
        ("nr_line_info", U32), ("line_info", U64), ("jited_line_info", U64),
        ("nr_jited_line_info", U32), ("line_info_rec_size", U32), ("jited_line_info_rec_size", U32),
        ("nr_prog_tags", U32), ("prog_tags", U64)]


class LineInfo(ctypes.Structure):
    """struct bpf_line_info of linux/bpf.h."""
    _fields_ = [("insn_off", U32), ("file_name_off", U32), ("line_off", U32), ("line_col", U32)]


class Program:
    """
    A pinned, loaded program: functions, [(address, bytes)], and lines, [(address, "file:number
    text")] in order.
    """

    def __init__(self, path):
        self.lib = load_library()
        fd = self.lib.bpf_obj_get(bytes(path))
        if fd < 0:
            die(f"{path}: {os.strerror(ctypes.get_errno())}")
        size = self._ask(fd, ProgInfo())
        arrays = {
            "jited_ksyms": (U64 * size.nr_jited_ksyms)(),
            "jited_func_lens": (U32 * size.nr_jited_func_lens)(),
            "line_info": (LineInfo * size.nr_line_info)(),
            "jited_line_info": (U64 * size.nr_jited_line_info)(),
        }
        info = ProgInfo(line_info_rec_size=ctypes.sizeof(LineInfo), jited_line_info_rec_size=8)
        for name, array in arrays.items():
            setattr(info, name, ctypes.addressof(array))
            setattr(info, f"nr_{name}", len(array))
        self._ask(fd, info)
        os.close(fd)
        self.functions = list(zip(arrays["jited_ksyms"], arrays["jited_func_lens"]))
        self.lines = self._lines(info.btf_id, arrays["jited_line_info"], arrays["line_info"])

    def _ask(self, fd, info):
        length = U32(ctypes.sizeof(info))
        if self.lib.bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(length)):
            die(f"no information about the program: {os.strerror(ctypes.get_errno())}")
        return info

    def _lines(self, btf_id, addresses, infos):
        btf = ctypes.c_void_p(self.lib.btf__load_from_kernel_by_id(btf_id))
        found = []
        for address, info in zip(addresses, infos):
            file, text = (self.lib.btf__name_by_offset(btf, offset).decode()
                          for offset in (info.file_name_off, info.line_off))
            found.append((address, f"{os.path.basename(file)}:{info.line_col >> 10} "
                                   f"{text.strip()}"))
        self.lib.btf__free(btf)
        return sorted(found)
