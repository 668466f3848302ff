# SPDX-License-Identifier: BSD-2-Clause
"""A cluster of redis-servers, whose slots move."""
import contextlib
import shutil
import time

import conftest
import pytest
from relay import Relay
from respserver import Daemon, free_port, redis, wait_for

SLOTS = 16384
MASTERS = 3
ELECTION = 4.5  # seconds from one election of a node to the next: 4, and some


class Cluster:
    """
    Three masters, and (as the fourth server) a replica of the last one.  They tell everybody the
    ports of relays.
    """

    def __init__(self, make_place):
        if not shutil.which("redis-server"):
            pytest.skip("redis-server is not installed")
        self.elected = {}  # by the number of a node: when
        self.buses = [free_port() for _ in range(MASTERS + 1)]
        self.relays = [Relay() for _ in self.buses]
        self.servers = [
            Daemon(["redis-server"], str(make_place("redis")), "--save", "",
                   "--cluster-enabled", "yes", "--cluster-port", str(bus),
                   "--cluster-announce-port", str(relay.port),
                   "--cluster-node-timeout", "1000",
                   "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0")
            for bus, relay in zip(self.buses, self.relays)]
        for server, relay in zip(self.servers, self.relays):
            relay.target = server.port
        first = self.call(0)
        for number in range(MASTERS):
            self.call(number)("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self.call(number)("CLUSTER", "ADDSLOTSRANGE", SLOTS * number // MASTERS,
                              SLOTS * (number + 1) // MASTERS - 1)
        for server, bus in zip(self.servers[1:], self.buses[1:]):
            first("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        self.ids = [self.call(i)("CLUSTER", "MYID").decode() for i in range(MASTERS + 1)]
        wait_for(lambda: all(self.sees_all(i) for i in range(MASTERS + 1)), "the nodes to meet")
        self.call(3)("CLUSTER", "REPLICATE", self.ids[2])
        wait_for(lambda: all(self.is_well(i) for i in range(MASTERS + 1)), "the cluster")
        wait_for(lambda: is_replica(self, 3), "the replica")
        self.agree()

    def call(self, number):
        return self.servers[number].client().execute_command

    def sees_all(self, number):
        return self.servers[number].client().execute_command("CLUSTER INFO")[
            "cluster_known_nodes"] == str(MASTERS + 1)

    def is_well(self, number):
        said = self.servers[number].client().execute_command("CLUSTER INFO")
        return said["cluster_state"] == "ok"

    def owner(self, key):
        slot = self.call(0)("CLUSTER", "KEYSLOT", key)
        for number in range(MASTERS):
            if SLOTS * number // MASTERS <= slot < SLOTS * (number + 1) // MASTERS:
                return number
        return None

    def key_of(self, number, name="k"):
        return next(f"{name}{i}" for i in range(1000) if self.owner(f"{name}{i}") == number)

    def begin_move(self, slot, source, target):
        self.call(target)("CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        self.call(source)("CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target])

    def move_keys(self, slot, source, target):
        while keys := self.call(source)("CLUSTER", "GETKEYSINSLOT", slot, 100):
            for key in keys:
                self.call(source)("MIGRATE", "127.0.0.1", self.servers[target].port, key, 0, 1000)

    def claim(self, slot, source, target):
        """The move ends for these two; the others, and xkvd, do not know it yet."""
        for number in (target, source):
            self.call(number)("CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])

    def end_move(self, slot, source, target):
        for number in (target, source, 3 - source - target):
            self.call(number)("CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])
        self.agree()

    def view(self, number):
        """What a node knows of slots, of who is right about them, and of who is whose replica."""
        return sorted((said["node_id"], said["master_id"], said["epoch"], str(said["slots"]))
                      for said in self.call(number)("CLUSTER NODES").values())

    def agree(self):
        """
        The next move of a slot is safe only then: its claim has to be the latest for all; and a
        master does not listen to a replica that it does not know to be its own.
        """
        wait_for(lambda: all(self.view(0) == self.view(i) for i in range(1, MASTERS + 1)),
                 "the nodes to agree")

    def fail_over(self, number):
        """
        As planned, without a loss, to the replica that has this number.  If it has just been
        elected, it would take the votes of then for those of now: there were two masters for a
        moment, and what is written to one of them is lost (redis/redis#8752).
        """
        def accepts():
            with contextlib.suppress(redis.ResponseError):  # it does not see its master
                return self.call(number)("CLUSTER", "FAILOVER")
        for _ in range(5):  # Redis gives up one that takes longer than 5 s
            wait_for(lambda: is_replica(self, number), "the replica")
            self.agree()
            time.sleep(max(0, self.elected.get(number, 0) + ELECTION - time.monotonic()))
            wait_for(accepts, "the replica to see its master")
            with contextlib.suppress(pytest.fail.Exception):
                conftest.wait_for(lambda: self.is_master(number), 6, "the failover")
                self.elected[number] = time.monotonic()
                return
        pytest.fail("no failover takes place")

    def is_master(self, number):
        return self.servers[number].client().role()[0] == b"master"

    def stop(self):
        for server in self.servers:
            server.process.kill()
            server.process.wait()
        for relay in self.relays:
            relay.listener.close()


def is_replica(cluster, number):
    said = cluster.servers[number].client().info("replication")
    return said.get("master_link_status") == "up"
