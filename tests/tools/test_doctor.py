# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 9
"""
`xkv doctor`: machines that are recorded as files of /proc and /sys and as what ethtool has printed,
each with one thing that is not as it should be; and a live one on the test bed, which is then
recorded, and must look the same.
"""
import datetime
import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import BUILD, SERVER, run, wait_for

XKV = BUILD / "xkv"
NET = "sys/class/net/eth0"
GRADES = {"good": 0, "warning": 1, "bad": 2}

# A machine on which all is well: eight CPUs in two nodes, a ConnectX with a queue for each CPU.
WELL = {
    "proc/sys/kernel/osrelease": "6.8.0-45-generic",
    "proc/sys/kernel/bpf_stats_enabled": "0",
    "proc/sys/net/core/bpf_jit_enable": "1",
    "proc/sys/net/core/bpf_jit_harden": "0",
    "proc/sys/vm/overcommit_memory": "0",
    "proc/sys/vm/swappiness": "60",
    "proc/self/mounts": "sysfs /sys sysfs rw 0 0\nbpf /sys/fs/bpf bpf rw,mode=700 0 0",
    "proc/self/status": "Name:\txkv\nCapEff:\t000001ffffffffff",
    "proc/self/limits": "Limit   Soft Limit   Hard Limit   Units\n"
                        "Max locked memory         8388608              8388608              bytes",
    "proc/meminfo": "MemTotal: 65536000 kB\nSwapTotal:  2097148 kB\nSwapFree:  2097148 kB",
    "proc/1/comm": "systemd",
    "sys/kernel/btf/vmlinux": "\x9f",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm",
    "sys/devices/system/cpu/online": "0-7",
    **{f"sys/devices/system/cpu/cpu{i}/cpufreq/scaling_governor": "performance" for i in range(8)},
    "sys/devices/system/node/node0/cpulist": "0-7",
    "sys/devices/system/node/node1/cpulist": "8-15",
    f"{NET}/mtu": "1500",
    f"{NET}/flags": "0x1003",
    f"{NET}/ifindex": "2",
    f"{NET}/device/numa_node": "0",
    f"{NET}/napi_defer_hard_irqs": "0",
    f"{NET}/gro_flush_timeout": "0",
    f"{NET}/statistics/rx_packets": "81234567890",
    **{f"{NET}/device/msi_irqs/{90 + i}": "msix" for i in range(8)},
    **{f"proc/irq/{90 + i}/effective_affinity_list": str(i) for i in range(8)},
    "ethtool/eth0/driver": "driver: mlx5_core\nversion: 6.8.0\nfirmware-version: 26.36.1010",
    "ethtool/eth0/features": "Features for eth0:\nrx-checksumming: on\n"
                             "\ttx-checksum-ip-generic: on\nlarge-receive-offload: off\n"
                             "rx-vlan-offload: off\nrx-gro-hw: off",
    "ethtool/eth0/channels": "Channel parameters for eth0:\nPre-set maximums:\nRX:\t\tn/a\n"
                             "TX:\t\tn/a\nOther:\t\tn/a\nCombined:\t63\n"
                             "Current hardware settings:\nRX:\t\tn/a\nTX:\t\tn/a\nOther:\t\tn/a\n"
                             "Combined:\t8",
    "ethtool/eth0/rings": "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t8192\n"
                          "RX Mini:\tn/a\nRX Jumbo:\tn/a\nTX:\t\t8192\n"
                          "Current hardware settings:\nRX:\t\t1024\nTX:\t\t1024",
    "ethtool/eth0/statistics": "NIC statistics:\n     rx_packets: 81234567890\n"
                               "     rx_xdp_drops: 99999999999\n     rx_out_of_buffer: 0",
    "ethtool/eth0/hash": "UDP over IPV4 flows use these fields for computing Hash flow key:\n"
                         "IP SA\nIP DA\nL4 bytes 0 & 1 [TCP/UDP src port]\n"
                         "L4 bytes 2 & 3 [TCP/UDP dst port]\n",
    "ethtool/eth0/xdp": "basic redirect ndo-xmit xsk-zerocopy rx-sg",
    "ethtool/eth0/link": "2: eth0: <BROADCAST,MULTICAST,UP> mtu 1500 xdp qdisc mq state UP\\"
                         " prog/xdp id 41 name xkv_xdp tag 0123456789abcdef jited",
    "server/info": "# Server\r\nxkv_version:0.1.0\r\nuptime_in_seconds:86400\r\n# Memory\r\n"
                   "used_memory_dataset:1073741824\r\n# Persistence\r\n"
                   "rdb_last_bgsave_status:ok\r\naof_last_write_status:ok\r\n# xkv\r\n"
                   "xkv_attached:1\r\nxkv_mode:native\r\n"
                   "xkv_interface:eth0\r\nxkv_program_id:41\r\n",
    "server/config": "interface\neth0\ndir\n/var/lib/xkv\nsave\n3600 1 300 100\nappendonly\nno\n"
                     "tls-cert-file\n\ntls-ca-cert-file\n",
    "server/free": "/var/lib/xkv 107374182400",
}


def channels(combined, most, rx=0, tx=0, most_each=0):
    return {"ethtool/eth0/channels":
            f"Channel parameters for eth0:\nPre-set maximums:\nRX:\t\t{most_each or 'n/a'}\n"
            f"TX:\t\t{most_each or 'n/a'}\nOther:\t\t1\nCombined:\t{most or 'n/a'}\n"
            f"Current hardware settings:\nRX:\t\t{rx or 'n/a'}\nTX:\t\t{tx or 'n/a'}\n"
            f"Other:\t\t1\nCombined:\t{combined or 'n/a'}"}


def driver(name, **more):
    """A card of another driver; `more`: changed offloads, by their names with _ for -."""
    offloads = {"large-receive-offload": "off [fixed]", "rx-vlan-offload": "off",
                "rx-gro-hw": "off [fixed]", "tx-checksum-ip-generic": "on"}
    offloads.update({feature.replace("_", "-"): state for feature, state in more.items()})
    return {"ethtool/eth0/driver": f"driver: {name}",
            "ethtool/eth0/features": "\n".join(f"{n}: {s}" for n, s in offloads.items())}


def cpus(n):
    """A machine with n CPUs of one node, to all of which interrupts go."""
    return {"sys/devices/system/cpu/online": f"0-{n - 1}",
            "sys/devices/system/node/node0/cpulist": f"0-{n - 1}",
            **{f"{NET}/device/msi_irqs/{1000 + i}": "msix" for i in range(n)},
            **{f"proc/irq/{1000 + i}/effective_affinity_list": str(i) for i in range(n)},
            **channels(n, n)}


def config(**changed):
    lines = WELL["server/config"].split("\n") + [""]
    values = dict(zip(lines[::2], lines[1::2]))
    values.update({name.replace("_", "-"): value for name, value in changed.items()})
    return {"server/config": "\n".join(f"{n}\n{v}" for n, v in values.items())}


def info(**changed):
    text = WELL["server/info"]
    for name, value in changed.items():
        text = re.sub(rf"^{name}:.*$", f"{name}:{value}\r", text, flags=re.M)
    return {"server/info": text}


def upstream(up, error="", caches=1):
    fields = f"upstream:db:6379\r\nupstream_version:7.0.15\r\nupstream_up:{up}\r\n" \
             f"upstream_error:{error}\r\nupstream_caches:{caches}\r\n"
    return {"server/info": WELL["server/info"] + "\r\n" + fields}


def record(place, *changes):
    """Writes the files of a machine; a change to None leaves one out."""
    files = dict(WELL)
    for change in changes:
        files.update(change)
    for name, text in files.items():
        if text is not None:
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("latin-1") + b"\n")
    return place


def examine(place, *argv):
    """(exit status, {point: what was found}); the text must say the same as JSON does."""
    command = [XKV, "doctor", *argv, "--from", place]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False,
                          timeout=30)
    assert not done.stderr, done
    found = json.loads(done.stdout)
    points = {point["point"]: point for point in found["points"]}
    assert len(points) == len(found["points"])
    worst = max((p["grade"] for p in points.values()), key=GRADES.get)
    assert found["grade"] == worst and done.returncode == GRADES[worst]
    text = run(*command, check=False).stdout
    for point in points.values():
        assert re.search(rf"^{point['grade']} +{point['point']} +{re.escape(point['value'])}$",
                         text, re.M), (point, text)
        assert point["why"] and (point["grade"] != "good" or point["mend"] is None)
        if point["mend"]:
            assert point["mend"] in text and point["why"] in text
    return done.returncode, points


def test_several_interfaces(tmp_path):
    """Each is looked at, and named."""
    record(tmp_path, config(interface="eth0 eth1"))
    for name in ("sys/class/net", "ethtool"):
        shutil.copytree(tmp_path / name / "eth0", tmp_path / name / "eth1")
    (tmp_path / "sys/class/net/eth1/flags").write_text("0x1002\n")
    done = run(XKV, "doctor", "--json", "--from", tmp_path, check=False)
    found = json.loads(done.stdout)
    assert found["interface"] == "eth0 eth1" and done.returncode == GRADES["bad"]
    assert [p["value"] for p in found["points"] if p["point"] == "interface"] == [
        "eth0: eth0 is up", "eth1: eth1 is down"]
    bad = [p for p in found["points"] if p["grade"] == "bad"]
    assert [p["mend"] for p in bad] == ["ip link set dev eth1 up"]


def test_all_is_well(tmp_path):
    status, points = examine(record(tmp_path), "eth0")
    assert {p["grade"] for p in points.values()} == {"good"} and status == 0, points
    assert set(points) == {
        "kernel", "btf", "bpffs", "jit", "jit-harden", "bpf-stats", "capabilities", "memlock",
        "clock", "governor", "overcommit", "swap", "interface", "driver", "xdp-hook", "mtu", "lro",
        "hw-gro", "vlan-offload", "queues", "rings", "rss", "interrupts", "numa", "napi", "losses",
        "xkvd", "attached", "persistence", "disk"}
    # without a name: the one that xkvd is on
    assert examine(tmp_path) == (status, points)


CLOCK = "sys/devices/system/clocksource/clocksource0"
ROUND = {f"proc/irq/{90 + i}/effective_affinity_list": "3" for i in range(8)}
FAR = {f"proc/irq/{90 + i}/effective_affinity_list": str(8 + i) for i in range(8)}
IRQBALANCE = {"proc/812/comm": "irqbalance"}
NOT_COMBINED = channels(0, 74, rx=8, tx=8, most_each=74)
STATISTICS = "ethtool/eth0/statistics"

# what is changed, the only point that is not good, its grade, words of the value, the command
CASES = {
    # the machine
    "old kernel": ({"proc/sys/kernel/osrelease": "5.15.0-91-generic"},
                   "kernel", "bad", "5.15.0-91", "linux-image"),
    "kernel 6.0": ({"proc/sys/kernel/osrelease": "6.0.19"}, "kernel", "bad", "6.1 or newer", ""),
    "no BTF": ({"sys/kernel/btf/vmlinux": None}, "btf", "bad", "No such file", "CONFIG_DEBUG_INFO"),
    "no bpffs": ({"proc/self/mounts": "bpf /run/bpf bpf rw 0 0\ntmpfs /sys/fs/bpf tmpfs rw 0 0"},
                 "bpffs", "bad", "/sys/fs/bpf", "mount -t bpf bpf /sys/fs/bpf"),
    "no JIT": ({"proc/sys/net/core/bpf_jit_enable": "0"}, "jit", "bad", "0",
               "sysctl -w net.core.bpf_jit_enable=1"),
    "JIT debugged": ({"proc/sys/net/core/bpf_jit_enable": "2"}, "jit", "warning", "log", "=1"),
    "JIT hardened": ({"proc/sys/net/core/bpf_jit_harden": "2"}, "jit-harden", "warning", "2", "=1"),
    "statistics of BPF": ({"proc/sys/kernel/bpf_stats_enabled": "1"}, "bpf-stats", "warning", "1",
                          "sysctl -w kernel.bpf_stats_enabled=0"),
    "no rights": ({"proc/self/status": "Name:\txkv\nCapEff:\t0000000000000000"},
                  "capabilities", "warning", "CAP_NET_ADMIN CAP_SYS_ADMIN", "sudo"),
    "one right": ({"proc/self/status": "CapEff:\t0000000000001000"},
                  "capabilities", "warning", "without CAP_SYS_ADMIN", "sudo"),
    "slow clock": ({f"{CLOCK}/current_clocksource": "hpet"}, "clock", "warning", "hpet",
                   f"echo tsc > /{CLOCK}/current_clocksource"),
    "no fast clock": ({f"{CLOCK}/current_clocksource": "acpi_pm",
                       f"{CLOCK}/available_clocksource": "hpet acpi_pm"},
                      "clock", "warning", "acpi_pm", "dmesg"),
    "governor": ({"sys/devices/system/cpu/cpu5/cpufreq/scaling_governor": "powersave"},
                 "governor", "warning", "powersave on 1 of 8 CPUs", "cpupower frequency-set"),
    "strict overcommit": ({"proc/sys/vm/overcommit_memory": "2"}, "overcommit", "warning", "2",
                          "=0"),
    "swapped out": ({"proc/meminfo": "SwapTotal:  2097148 kB\nSwapFree:  1048572 kB"},
                    "swap", "warning", "1024 of 2047 MiB", "swapoff"),
    # the interface
    "down": ({f"{NET}/flags": "0x1002"}, "interface", "bad", "down", "ip link set dev eth0 up"),
    "another program": ({"ethtool/eth0/link": "2: eth0: mtu 1500 xdp qdisc mq state UP\\ prog/xdp"
                                              " id 7 name cil_xdp_entry tag 01 jited"},
                        "xdp-hook", "bad", "program 7, cil_xdp_entry", "xdp off"),
    "a program that is only called like ours": (
        {"ethtool/eth0/link": "2: eth0: mtu 1500 xdp qdisc mq state UP\\ prog/xdp id 7"
                              " name xkv_firewall tag 01 jited"},
        "xdp-hook", "bad", "program 7, xkv_firewall", "xdp off"),
    "another program of our name": (info(xkv_program_id=0), "xdp-hook", "bad",
                                    "program 41, xkv_xdp, is there, and not that", "xdp off"),
    "of our name, on one of several interfaces": (
        info(xkv_interface="eth1 eth0\r\nxkv_interface0:name=eth1,attached=1,mode=native,"
             "program_id=41\r\nxkv_interface1:name=eth0,attached=1,mode=native,program_id=42"),
        "xdp-hook", "bad", "program 41, xkv_xdp, is there, and not that", "xdp off"),
    "generic mode": ({"ethtool/eth0/link": "2: eth0: mtu 1500 xdpgeneric qdisc mq state UP\\"
                                           " prog/xdp id 41 name xkv_xdp tag 01 jited"},
                     "xdp-hook", "warning", "generic", "restart xkvd"),
    "jumbo frames": ({f"{NET}/mtu": "9000"}, "mtu", "bad", "mlx5_core takes at most 3498",
                     "ip link set dev eth0 mtu 1500"),
    "small frames": ({f"{NET}/mtu": "1400"}, "mtu", "warning", "1400", "mtu 1500"),
    "tags are stripped": (driver("mlx5_core", rx_vlan_offload="on"), "vlan-offload", "warning",
                          "strips", "ethtool -K eth0 rxvlan off txvlan off"),
    "few queues": ({**driver("ice"), **channels(2, 63)}, "queues", "warning",
                   "2 of at most 63, 8 CPUs", "ethtool -L eth0 combined 8"),
    "mlx5, a CPU beyond the queues": (channels(7, 63), "queues", "warning",
                                      "go to CPU 7: what batched mode redirects there is lost",
                                      "ethtool -L eth0 combined 8, or `batch off`"),
    "small rings": ({"ethtool/eth0/rings": "Pre-set maximums:\nRX:\t\t8192\n"
                                           "Current hardware settings:\nRX:\t\t512"},
                    "rings", "warning", "512 of at most 8192", "ethtool -G eth0 rx 2048"),
    "addresses only": ({"ethtool/eth0/hash": "UDP over IPV4 flows use these fields for computing "
                                             "Hash flow key:\nIP SA\nIP DA"},
                       "rss", "warning", "addresses only",
                       "ethtool -N eth0 rx-flow-hash udp4 sdfn"),
    "one CPU": (ROUND, "interrupts", "warning", "8 on 1 CPUs", "enable --now irqbalance"),
    "one CPU, balanced": ({**ROUND, **IRQBALANCE}, "interrupts", "warning", "although irqbalance",
                          "smp_affinity_list"),
    "far interrupts": ({**driver("ice"), **FAR}, "numa", "warning", "8 CPUs of others", "echo 0-7"),
    "half of a deferral": ({f"{NET}/gro_flush_timeout": "20000"}, "napi", "warning",
                           "one without the other", "napi_defer_hard_irqs"),
    "long deferral": ({f"{NET}/gro_flush_timeout": "5000000", f"{NET}/napi_defer_hard_irqs": "2"},
                      "napi", "warning", "latency", "20000"),
    # each driver's counters
    "mlx5 losses": ({STATISTICS: "     rx_out_of_buffer: 99999999\n     rx_discards_phy: 4"},
                    "losses", "warning", "rx_out_of_buffer is 99999999", "ethtool -S eth0"),
    "ena throttled": ({STATISTICS: "     pps_allowance_exceeded: 88888888"}, "losses", "warning",
                      "pps_allowance_exceeded", ""),
    "ixgbe losses": ({STATISTICS: "     rx_missed_errors: 77777777"}, "losses", "warning",
                     "rx_missed_errors", ""),
    "bnxt losses": ({STATISTICS: "     [0]: rx_discards: 66666666"}, "losses", "warning",
                    "[0]: rx_discards", ""),
    "gve losses": ({STATISTICS: "     rx_queue_drop_cnt[0]: 55555555"}, "losses", "warning",
                   "rx_queue_drop_cnt[0]", ""),
    "mlx5 redirects lost": ({STATISTICS: "     tx_xdp_full: 44444444"}, "losses", "warning",
                            "tx_xdp_full", ""),
    # LRO and HW-GRO, driver by driver
    "mlx5 LRO": (driver("mlx5_core", large_receive_offload="on"), "lro", "bad", "refuses",
                 "ethtool -K eth0 lro off"),
    "mlx5 HW-GRO": (driver("mlx5_core", rx_gro_hw="on"), "hw-gro", "bad", "refuses",
                    "ethtool -K eth0 rx-gro-hw off"),
    "ixgbe LRO": (driver("ixgbe", large_receive_offload="on"), "lro", "bad", "refuses", "lro off"),
    "gve HW-GRO": ({**driver("gve", rx_gro_hw="on"), **channels(0, 0, rx=8, tx=8, most_each=16)},
                   "hw-gro", "bad", "refuses", "rx-gro-hw off"),
    "virtio, host merges": ({**driver("virtio_net", rx_gro_hw="on [fixed]"), **channels(8, 16)},
                            "hw-gro", "bad", "cannot be turned off", "guest_tso4=off"),
    # MTU, driver by driver
    **{f"{name} MTU": ({**driver(name), **more, f"{NET}/mtu": str(limit + 1)}, "mtu", "bad",
                       f"{name} takes at most {limit}", "mtu 1500")
       for name, limit, more in (
           ("ice", 3046, {}), ("i40e", 3046, {}), ("ixgbe", 3050, {}), ("bnxt_en", 3502, {}),
           ("veth", 3506, driver("veth", tx_checksum_ip_generic="off")),
           ("ena", 3498, channels(8, 16)), ("virtio_net", 3506, channels(8, 16)),
           ("gve", 2032, channels(0, 0, rx=8, tx=8, most_each=16)))},
    # queues, driver by driver
    "ena, more than half": ({**driver("ena"), **channels(8, 8)}, "queues", "bad", "half",
                            "ethtool -L eth0 combined 4"),
    "gve, more than half": ({**driver("gve"), **channels(0, 0, rx=8, tx=8, most_each=12)},
                            "queues", "bad", "at most half", "ethtool -L eth0 rx 6 tx 6"),
    "gve, unequal": ({**driver("gve"), **channels(0, 0, rx=8, tx=4, most_each=16)},
                     "queues", "bad", "as many of both", "rx 8 tx 8"),
    "bnxt, separate": ({**driver("bnxt_en"), **NOT_COMBINED}, "queues", "bad", "combined",
                       "ethtool -L eth0 rx 0 tx 0 combined 8"),
    "bnxt, more than half": ({**driver("bnxt_en"), **channels(8, 12)}, "queues", "warning",
                             "as many for XDP", "ethtool -L eth0 combined 6"),
    "virtio, none to spare": ({**driver("virtio_net"), **channels(8, 8)}, "queues", "warning",
                              "under a lock", "16 queue pairs"),
    "virtio, some": ({**driver("virtio_net"), **channels(8, 12)}, "queues", "warning",
                     "under a lock", "ethtool -L eth0 combined 4"),
    "ixgbe, many CPUs": ({**driver("ixgbe"), **cpus(96)}, "queues", "warning", "64 queues",
                         "nr_cpus=64"),
    "ixgbe, too many CPUs": ({**driver("ixgbe"), **cpus(160)}, "queues", "bad", "refuses", ""),
    "ice, few": ({**driver("ice"), **channels(4, 4)}, "queues", "warning", "at most 4 for 8", ""),
    "i40e, few": ({**driver("i40e"), **channels(4, 64)}, "queues", "warning", "4, and interrupts",
                  "combined 8"),
    # what the kernel says of XDP
    "no native XDP": ({**driver("tg3"), "ethtool/eth0/xdp": ""}, "driver", "bad", "no native XDP",
                      "Network cards"),
    "gve in a mode without": ({**driver("gve"), **channels(0, 0, rx=8, tx=8, most_each=16),
                               "ethtool/eth0/xdp": ""}, "driver", "bad", "as it is set now", ""),
    "an unknown driver, old kernel": ({**driver("newnic"), "ethtool/eth0/xdp": None}, "driver",
                                      "warning", "nothing is known", "--mode native"),
    "veth": ({**driver("veth"), "ethtool/eth0/hash": None}, "checksums", "warning", "unfinished",
             "ethtool -K eth0 tx off"),
    # xkvd
    "no xkvd": ({"server/info": None, "server/config": None}, "xkvd", "warning", "not recorded",
                ""),
    "a Redis": (info(xkv_version=""), "xkvd", "warning", "no xkvd", "the options that reach it"),
    "stack only": (info(xkv_mode="none"), "attached", "bad", "eth0, none",
                   "journalctl -u xkvd"),
    "generic": (info(xkv_mode="generic"), "attached", "warning", "generic",
                "journalctl -u xkvd"),
    "generic as configured": ({**info(xkv_mode="generic"), **config(mode="generic")}, "attached",
                              "warning", "generic", "mode auto"),
    "no upstream": (upstream(0, "Connection refused"), "upstream", "bad",
                    "db:6379: Connection refused", "xkv info upstream"),
    "no cache": (upstream(1, caches=0), "upstream", "warning", "nothing is cached", "journalctl"),
    "nothing is saved": (config(save=""), "persistence", "warning", "neither", "config set save"),
    "a save has failed": (info(rdb_last_bgsave_status="err"), "persistence", "bad", "failed",
                          "xkv stats persistence"),
    "no room": ({"server/free": "/var/lib/xkv 1000000000"}, "disk", "bad", "953 MiB left, the data"
                " takes 1024 MiB", "df -h /var/lib/xkv"),
    "little room": ({"server/free": "/var/lib/xkv 2000000000"}, "disk", "warning", "1907 MiB", ""),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_one_thing_is_wrong(tmp_path, case):
    changed, point, grade, value, command = case
    _, points = examine(record(tmp_path, changed), "eth0")
    assert {p for p, f in points.items() if f["grade"] != "good"} == {point}, points
    found = points[point]
    assert found["grade"] == grade and value in found["value"] and command in (found["mend"] or "")


# Drivers as they should be, in the state that their manuals recommend for XDP.
HEALTHY = {
    "ice": driver("ice", large_receive_offload="off"),
    "i40e": {**driver("i40e"), **channels(8, 64)},
    "ixgbe": {**driver("ixgbe", large_receive_offload="off"), **channels(8, 63)},
    "bnxt": {**driver("bnxt_en", large_receive_offload="on", rx_gro_hw="on"), **channels(8, 74)},
    "ena": {**driver("ena"), **channels(4, 8)},  # 4 of 8 CPUs: no more may have a queue
    "gve": {**driver("gve"), **channels(0, 0, rx=8, tx=8, most_each=16)},
    "virtio": {**driver("virtio_net", rx_gro_hw="on"), **channels(8, 16)},
    "veth": {**driver("veth", tx_checksum_ip_generic="off", rx_vlan_offload="on"),
             f"{NET}/device/numa_node": None},
    "several interfaces": info(xkv_interface="eth1 eth0\r\nxkv_interface0:name=eth1,attached=1,"
                               "mode=native,program_id=40\r\nxkv_interface1:name=eth0,"
                               "attached=1,mode=native,program_id=41"),
    "an interface of another xkvd": info(xkv_interface="eth1", xkv_program_id=7),
    "free hook": {"ethtool/eth0/link": "2: eth0: <UP> mtu 1500 qdisc mq state UP"},
    "dispatcher": {"ethtool/eth0/link":
                   "2: eth0: mtu 1500 xdp\\ prog/xdp id 9 name xdp_dispatcher"},
    "deferral": {f"{NET}/gro_flush_timeout": "20000", f"{NET}/napi_defer_hard_irqs": "2"},
    "few losses": {STATISTICS: "     rx_out_of_buffer: 8000000"},
    "frames to others": {STATISTICS: "     rx_steer_missed_packets: 99999999"},
    "bytes and interrupts": {STATISTICS: "     rx_discard_bytes_cos0: 99999999\n"
                                         "     [0]: missed_irqs: 99999999"},
    "no swap": {"proc/meminfo": "SwapTotal:  0 kB\nSwapFree:  0 kB"},
    "virtio's interrupts are its parent's": {
        **{f"{NET}/device/msi_irqs/{90 + i}": None for i in range(8)},
        **{f"{NET}/msi_irqs/{90 + i}": "msix" for i in range(8)}, f"{NET}/device/x": ""},
    "irqbalance": IRQBALANCE,
    "the log alone": config(save="", appendonly="yes"),
    "a cache need not last": {**upstream(1), **config(save="")},
}


@pytest.mark.sanitized
@pytest.mark.parametrize("changed", HEALTHY.values(), ids=HEALTHY.keys())
def test_nothing_is_wrong(tmp_path, changed):
    status, points = examine(record(tmp_path, changed), "eth0")
    assert status == 0, [p for p in points.values() if p["grade"] != "good"]


def test_without_an_interface(tmp_path):
    """Only the machine is examined; one that is not there is bad, and lo is fine."""
    place = record(tmp_path, {"server/info": None})
    _, points = examine(place)
    assert "interface" not in points and "kernel" in points
    status, points = examine(place, "eth7")
    assert status == 2 and points["interface"]["grade"] == "bad" and "mtu" not in points
    record(place, {"sys/class/net/lo/mtu": "65536", "sys/class/net/lo/flags": "0x9"})
    _, points = examine(place, "lo")
    assert points["interface"]["grade"] == "good" and "mtu" not in points


@pytest.mark.sanitized
@pytest.mark.parametrize("days, grade, value", [
    (400, "good", "is valid for"), (10, "warning", "days only"), (-3, "bad", "no longer")])
def test_certificates(tmp_path, days, grade, value):
    """`openssl ca` makes one that has ended."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days, hours=12)
    start = end - datetime.timedelta(days=1000)
    key, request, cert = (tmp_path / name for name in ("a.key", "a.csr", "a.crt"))
    run("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-keyout", key, "-out", request, "-subj", "/CN=xkv")
    (tmp_path / "index").touch()
    (tmp_path / "ca.cnf").write_text(
        f"[ca]\ndefault_ca=a\n[a]\ndatabase={tmp_path}/index\nnew_certs_dir={tmp_path}\n"
        "default_md=sha256\nrand_serial=yes\npolicy=p\n[p]\ncommonName=supplied\n",
        encoding="ascii")
    run("openssl", "ca", "-config", tmp_path / "ca.cnf", "-batch", "-selfsign", "-keyfile", key,
        "-in", request, "-out", cert, "-notext", "-startdate", f"{start:%Y%m%d%H%M%SZ}",
        "-enddate", f"{end:%Y%m%d%H%M%SZ}")
    place = record(tmp_path / "machine",
                   {"etc/xkv/server.crt": cert.read_text(encoding="ascii")},
                   config(tls_cert_file="/etc/xkv/server.crt"))
    _, points = examine(place, "eth0")
    assert points["certificate"]["grade"] == grade and value in points["certificate"]["value"]
    (place / "etc/xkv/server.crt").write_text("no certificate", encoding="ascii")
    assert examine(place, "eth0")[1]["certificate"]["grade"] == "warning"


@pytest.mark.sanitized
def test_a_certificate_that_is_a_fifo(tmp_path):
    """Nobody writes to it: to open it as a file would never return."""
    place = record(tmp_path, {}, config(tls_cert_file="/fifo"))
    os.mkfifo(place / "fifo")
    point = examine(place, "eth0")[1]["certificate"]
    assert point["grade"] == "warning" and point["value"] == "/fifo: it is no regular file"


def test_wrong_words(tmp_path):
    for words in (["eth0", "eth1"], ["--jason"], ["--from"], ["--from", tmp_path / "none"]):
        done = run(XKV, "doctor", *words, check=False)
        assert done.returncode == 2 and done.stderr and not done.stdout, done


# Live ------------------------------------------------------------------------------------------

RECORDED = {"driver": ["-i"], "features": ["-k"], "channels": ["-l"], "rings": ["-g"],
            "statistics": ["-S"]}


def record_live(bed, place):
    """What docs/operations.md says to send along, of xkv0."""
    for name in ("proc/sys/kernel/osrelease", "proc/self/mounts", "proc/meminfo",
                 "sys/devices/system/cpu/online"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(open("/" + name, "rb").read())
    net = place / "sys/class/net/xkv0"
    net.mkdir(parents=True)
    for name in ("mtu", "flags", "napi_defer_hard_irqs", "gro_flush_timeout"):
        (net / name).write_text(run("ip", "netns", "exec", f"{bed.name}-server", "cat",
                                    f"/sys/class/net/xkv0/{name}").stdout, encoding="ascii")
    tools = place / "ethtool/xkv0"
    tools.mkdir(parents=True)
    for name, option in RECORDED.items():
        (tools / name).write_text(bed.run("server", "ethtool", *option, "xkv0", check=False).stdout,
                                  encoding="ascii")
    (tools / "link").write_text(bed.run("server", "ip", "-d", "-o", "link", "show", "xkv0").stdout,
                                encoding="ascii")
    (tools / "xdp").write_text("basic redirect ndo-xmit", encoding="ascii")


def ill(bed):
    """{point: grade} of what is not good."""
    found = json.loads(bed.run("server", XKV, "-h", SERVER, "--json", "doctor", "xkv0",
                               check=False).stdout)
    return {point["point"]: point["grade"] for point in found["points"]
            if point["grade"] != "good"}


@pytest.mark.sanitized
def test_live(bed, xkvd, tmp_path):
    """On a veth with an xkvd: what ethtool's ioctls say is what ethtool prints."""
    xkvd("--save", "")
    done = bed.run("server", XKV, "-h", SERVER, "--json", "doctor", check=False)
    live = json.loads(done.stdout)
    points = {point["point"]: point for point in live["points"]}
    assert live["interface"] == "xkv0" and done.returncode == GRADES[live["grade"]]
    for name in ("kernel", "btf", "bpffs", "interface", "xdp-hook", "mtu", "lro", "attached",
                 "queues", "checksums"):
        assert points[name]["grade"] == "good", points[name]
    assert points["xdp-hook"]["value"].startswith("xkv's")
    assert points["persistence"]["grade"] == "warning" and "certificate" not in points
    record_live(bed, tmp_path)
    recorded = examine(tmp_path, "xkv0")[1]
    for name in ("kernel", "bpffs", "swap", "interface", "driver", "xdp-hook", "mtu", "lro",
                 "hw-gro", "vlan-offload", "checksums", "queues", "rings", "losses"):
        assert recorded.get(name) == points.get(name), name
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "down")
    try:
        done = bed.run("server", XKV, "-h", SERVER, "doctor", "xkv0", check=False)
        assert done.returncode == 2 and re.search(r"^bad +interface +xkv0 is down$", done.stdout,
                                                  re.M)
    finally:
        bed.run("server", "ip", "link", "set", "dev", "xkv0", "up")


def test_live_states(bed, xkvd):
    """Caused by a command, and ended by the one that the point names."""
    xkvd("--save", "3600 1")
    for cause, mend, wanted in [
            ("ip link set dev xkv0 mtu 1400", "ip link set dev xkv0 mtu 1500", {"mtu": "warning"}),
            ("ethtool -K xkv0 tx on", "ethtool -K xkv0 tx off", {"checksums": "warning"}),
            (f"ip -force link set dev xkv0 xdpdrv obj {BUILD}/pass.bpf.o sec xdp",
             "ip link set dev xkv0 xdp off", {"xdp-hook": "bad", "attached": "bad"})]:
        assert not set(wanted) & set(ill(bed))
        bed.run("server", *cause.split())
        try:
            wait_for(lambda w=wanted: w.items() <= ill(bed).items(), 20, f"{wanted}")
        finally:
            bed.run("server", *mend.split())
        wait_for(lambda w=wanted: not set(w) & set(ill(bed)), 60, f"{wanted} to end")


def test_live_without_xkvd_and_without_rights(bed):
    """What only root may read is a warning that says so; nothing else is printed."""
    done = bed.run("server", "setpriv", "--reuid", "65534", "--clear-groups", XKV, "--json",
                   "doctor", "xkv0", check=False, env={"PATH": os.environ["PATH"]})
    points = {p["point"]: p for p in json.loads(done.stdout)["points"]}
    assert not done.stderr
    assert points["capabilities"]["grade"] == points["xkvd"]["grade"] == "warning"
    assert "refused" in points["xkvd"]["value"]
