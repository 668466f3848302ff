# SPDX-License-Identifier: BSD-2-Clause
"""The wire format for tests: encodes requests, decodes replies, builds and checks whole frames.

Numbers come from bpf/proto.h itself, so that there is one definition.  Nothing here validates what
it encodes: tests must be able to say wrong things.
"""
import ipaddress
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

_TEXT = (Path(__file__).resolve().parent.parent / "bpf" / "proto.h").read_text(encoding="utf-8")
# Every plain number of proto.h, under its name without the XKV_: OP_GET, NX, MISS, KEY_MAX ...
CONST = {name: int(value, 0) for name, value in
         re.findall(r"^(?:#define\s+|\s+)XKV_(\w+)(?:\s+|\s*=\s*)(0x[0-9a-fA-F]+|\d+)\b", _TEXT,
                    re.M)}
globals().update(CONST)
VALUE_MAX = 1 << 20

_STATUS_ENUM = re.search(r"enum xkv_status \{(.*?)\};", _TEXT, re.S).group(1)
STATUS = {int(number): name for name, number in re.findall(r"XKV_(\w+) = (\d+)", _STATUS_ENUM)}

_HDR = struct.Struct("!HBBBBHQ")
_OP = struct.Struct("!BBBBIQQ")
_RESULT = struct.Struct("!BBBBIQQ")
HDR_LEN, OP_LEN, RESULT_LEN = _HDR.size, _OP.size, _RESULT.size


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


@dataclass
class Op:
    """One operation; the lengths are those of key and value unless a test says otherwise."""
    opcode: int
    key: bytes = b""
    value: bytes = b""
    flags: int = 0
    ttl: int = 0
    version: int = 0
    keys: int = 0  # SCAN: how many; else 0
    key_len: Optional[int] = None
    value_len: Optional[int] = None

    def encode(self) -> bytes:
        key_len = len(self.key) if self.key_len is None else self.key_len
        value_len = len(self.value) if self.value_len is None else self.value_len
        return (_OP.pack(self.opcode, self.flags, key_len, self.keys, value_len, self.ttl,
                         self.version) + padded(self.key) + padded(self.value))


def ping() -> Op:
    return Op(CONST["OP_PING"])


def get(key: bytes, **more) -> Op:
    return Op(CONST["OP_GET"], key, **more)


def set_(key: bytes, value: bytes, **more) -> Op:
    return Op(CONST["OP_SET"], key, value, **more)


def delete(key: bytes, **more) -> Op:
    return Op(CONST["OP_DELETE"], key, **more)


def expire(key: bytes, ttl: int, **more) -> Op:
    return Op(CONST["OP_EXPIRE"], key, ttl=ttl, **more)


def incr(key: bytes, amount: int, **more) -> Op:
    return Op(CONST["OP_INCR"], key, struct.pack("!q", amount), **more)


def append(key: bytes, value: bytes, **more) -> Op:
    return Op(CONST["OP_APPEND"], key, value, **more)


def ttl_of(key: bytes, **more) -> Op:
    return Op(CONST["OP_TTL"], key, **more)


def touch(key: bytes, **more) -> Op:
    return Op(CONST["OP_TOUCH"], key, **more)


def scan(key: bytes, keys: int, **more) -> Op:
    return Op(CONST["OP_SCAN"], key, keys=keys, **more)


def number(value: bytes) -> int:
    """The value that comes with the result of an INCR or APPEND."""
    return struct.unpack("!q", value)[0]


def request(*ops: Op, id: int = 1, token: bytes = b"", session: bytes = b"", pad_to: int = 0,
            magic: int = 0x584B, version: int = 1, flags: Optional[int] = None,
            count: Optional[int] = None, status: int = 0, length: Optional[int] = None) -> bytes:
    """A datagram.  session: 8 bytes; the request is to be done only once.
    pad_to: at least so many bytes, with zeros that `length` does not count."""
    body = token + session + b"".join(op.encode() for op in ops)
    if flags is None:
        flags = (CONST["F_TOKEN"] if token else 0) | (CONST["F_ONCE"] if session else 0)
    head = _HDR.pack(magic, version, flags, len(ops) if count is None else count, status,
                     HDR_LEN + len(body) if length is None else length, id)
    return (head + body).ljust(pad_to, b"\0")


@dataclass
class Result:
    opcode: int
    status: int
    value: Optional[bytes]  # None: the result carries no value
    value_len: int  # for TOO_LARGE and PAD: of what could not be sent
    ttl: int
    version: int

    @property
    def status_name(self) -> str:
        return STATUS.get(self.status, str(self.status))


@dataclass
class Reply:
    id: int
    status: int
    count: int
    length: int
    results: List[Result]


class BadReply(Exception):
    """A reply that contradicts the wire format."""


def _need(condition, what):
    if not condition:
        raise BadReply(what)


def decode(data: bytes) -> Reply:
    """Takes a reply apart and insists on everything that the format promises."""
    _need(len(data) >= HDR_LEN, f"{len(data)} bytes are less than a header")
    magic, version, flags, count, status, length, ident = _HDR.unpack_from(data)
    _need(magic == CONST["MAGIC"], f"magic {magic:#x}")
    _need(version == CONST["VERSION"], f"version {version}")
    _need(flags == CONST["F_REPLY"], f"flags {flags:#x}")
    _need(length <= len(data), f"length {length} of {len(data)} bytes")
    at, results = HDR_LEN, []
    for _ in range(count):
        _need(at + RESULT_LEN <= length, f"{count} results do not fit {length} bytes")
        opcode, st, rflags, index, value_len, ttl, ver = _RESULT.unpack_from(data, at)
        _need(rflags & ~CONST["HAS_VALUE"] == 0, "result flags")
        _need(index == 0 or status == CONST["ABORTED"], "index of an operation")
        at += RESULT_LEN
        value = None
        if rflags & CONST["HAS_VALUE"]:
            _need(at + value_len <= length, f"value of {value_len} bytes does not fit")
            value = data[at:at + value_len]
            _need(not any(data[at + value_len:at + len(padded(value))]), "padding is not zero")
            at += len(padded(value))
        elif st not in (CONST["TOO_LARGE"], CONST["PAD"]):
            _need(value_len == 0, f"value_len {value_len} without a value")
        results.append(Result(opcode, st, value, value_len, ttl, ver))
    _need(at == length, f"results end at {at}, length says {length}")
    return Reply(ident, status, count, length, results)


def checksum(data: bytes) -> int:
    """The Internet checksum; 0 over data that holds its own right checksum."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


SERVER_MAC, CLIENT_MAC = bytes.fromhex("020000770001"), bytes.fromhex("020000770002")


def _pseudo(src, dst, length: int) -> bytes:
    if src.version == 4:
        return src.packed + dst.packed + struct.pack("!BBH", 0, 17, length)
    return src.packed + dst.packed + struct.pack("!IxxxB", length, 17)


def udp(src, dst, sport: int, dport: int, payload: bytes, csum: Optional[int] = None) -> bytes:
    src, dst = ipaddress.ip_address(src), ipaddress.ip_address(dst)
    length = 8 + len(payload)
    head = struct.pack("!HHHH", sport, dport, length, 0)
    if csum is None:
        csum = checksum(_pseudo(src, dst, length) + head + payload) or 0xFFFF
    return head[:6] + struct.pack("!H", csum) + payload


def ip(src, dst, payload: bytes, proto: int = 17, ttl: int = 64, ident: int = 0, frag: int = 0x4000,
       options: bytes = b"") -> bytes:
    src, dst = ipaddress.ip_address(src), ipaddress.ip_address(dst)
    if src.version == 6:
        return struct.pack("!IHBB", 6 << 28, len(payload), proto,
                           ttl) + src.packed + dst.packed + payload
    head = struct.pack("!BBHHHBBH", 0x45 + len(options) // 4, 0, 20 + len(options) + len(payload),
                       ident, frag, ttl, proto, 0) + src.packed + dst.packed + options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def ethernet(payload: bytes, ethertype: int, vlans=(), dst: bytes = SERVER_MAC,
             src: bytes = CLIENT_MAC) -> bytes:
    """vlans: (ethertype, tag control information) from the outermost in."""
    tags = b"".join(struct.pack("!HH", tpid, tci) for tpid, tci in vlans)
    return dst + src + tags + struct.pack("!H", ethertype) + payload


def frame(payload: bytes, src="10.77.0.2", dst="10.77.0.1", sport: int = 40000, dport: int = 6379,
          vlans=(), csum: Optional[int] = None, **ip_args) -> bytes:
    """A whole Ethernet frame around a datagram."""
    version = ipaddress.ip_address(src).version
    packet = ip(src, dst, udp(src, dst, sport, dport, payload, csum), **ip_args)
    return ethernet(packet, 0x0800 if version == 4 else 0x86DD, vlans)


@dataclass
class Packet:
    """What a frame with UDP in it says."""
    dst_mac: bytes
    src_mac: bytes
    vlans: list
    src: str
    dst: str
    sport: int
    dport: int
    payload: bytes


def parse_frame(data: bytes) -> Packet:
    """Takes an Ethernet/VLAN/IP/UDP frame apart; lengths and both checksums must be right."""
    dst_mac, src_mac, at, vlans = data[:6], data[6:12], 12, []
    (ethertype,) = struct.unpack_from("!H", data, at)
    while ethertype in (0x8100, 0x88A8):
        vlans.append(struct.unpack_from("!HH", data, at))
        at += 4
        (ethertype,) = struct.unpack_from("!H", data, at)
    packet = data[at + 2:]
    if ethertype == 0x0800:
        _need(packet[0] == 0x45 and checksum(packet[:20]) == 0, "IPv4 header or its checksum")
        (total,) = struct.unpack_from("!H", packet, 2)
        _need(total <= len(packet) and packet[9] == 17, "IPv4 length or protocol")
        src, dst = (ipaddress.ip_address(packet[i:i + 4]) for i in (12, 16))
        segment = packet[20:total]
    else:
        _need(ethertype == 0x86DD, f"ethertype {ethertype:#x}")
        total, proto = struct.unpack_from("!HB", packet, 4)
        _need(40 + total <= len(packet) and proto == 17, "IPv6 length or next header")
        src, dst = (ipaddress.ip_address(packet[i:i + 16]) for i in (8, 24))
        segment = packet[40:40 + total]
    sport, dport, length, csum = struct.unpack_from("!HHHH", segment)
    _need(length == len(segment), f"UDP length {length}, IP carries {len(segment)}")
    if csum or src.version == 6:
        _need(csum and checksum(_pseudo(src, dst, length) + segment) == 0, "UDP checksum")
    return Packet(dst_mac, src_mac, vlans, str(src), str(dst), sport, dport, segment[8:])
