# SPDX-License-Identifier: BSD-2-Clause
"""A master with a replica, and a Sentinel that makes the one the other."""
import contextlib
import shutil

import conftest
import pytest
from respserver import Daemon, free_port, redis, wait_for

SENTINEL = """
    sentinel monitor mymaster 127.0.0.1 {} 1
    sentinel down-after-milliseconds mymaster 400
    sentinel failover-timeout mymaster 1000
"""


class Deployment:
    """A master with a replica, and a Sentinel."""

    def __init__(self, make_place):
        if not shutil.which("redis-server"):
            pytest.skip("redis-server is not installed")
        self.make_place = make_place
        self.servers = [self.redis()]
        self.servers.append(self.redis("--replicaof", "127.0.0.1", str(self.servers[0].port)))
        place = make_place("sentinel")
        config = place / "sentinel.conf"
        config.write_text(SENTINEL.format(self.servers[0].port), encoding="ascii")
        self.sentinel = Daemon(["redis-server", str(config), "--sentinel"], str(place))
        self.dead = free_port()
        wait_for(lambda: self.servers[1].client().info("replication")["master_link_status"] == "up"
                 and self.sentinel.client().sentinel_master("mymaster")["num-slaves"] == 1,
                 "the replica")

    def redis(self, *options):
        return Daemon(["redis-server"], str(self.make_place("redis")), "--save", "",
                      "--repl-diskless-sync-delay", "0", *options)

    def url(self):
        """Two Sentinels, of which the first one is not there."""
        return f"redis-sentinel://127.0.0.1:{self.dead},127.0.0.1:{self.sentinel.port}/mymaster"

    def master(self):
        """As Sentinel and the server itself say."""
        port = self.sentinel.client().sentinel_get_master_addr_by_name("mymaster")[1]
        found = next(s for s in self.servers if s.port == port)
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            role = found.client(socket_timeout=1).role()
            return found if role[0] == b"master" else None
        return None

    def other(self, server):
        return next(s for s in self.servers if s is not server)

    def has_replica(self):
        """
        Sentinel has the other one follow the master only some seconds after a failover, and learns
        of it some seconds later.
        """
        master = self.master()
        if not master:
            return False
        if not master.client().info("replication")["connected_slaves"]:
            self.other(master).client().replicaof("127.0.0.1", master.port)
            return False
        said = self.sentinel.client().execute_command("SENTINEL", "REPLICAS", "mymaster")
        known = (dict(zip(fields[::2], fields[1::2])) for fields in said)
        return any(replica[b"port"] == b"%d" % self.other(master).port
                   and replica[b"flags"] == b"slave"
                   and replica[b"master-link-status"] == b"ok" for replica in known)

    def is_synced(self):
        """Has the replica all that the master has?"""
        master = self.master()
        other = self.other(master).client().info("replication")
        return other["slave_repl_offset"] == master.client().info("replication")[
            "master_repl_offset"]

    def fail_over(self):
        """As planned: nothing that was acknowledged is lost."""
        conftest.wait_for(self.has_replica, 60, "the replica")
        old = self.master()
        old.client().client_pause(60_000, all=False)
        wait_for(self.is_synced, "the replica to have all")
        assert self.sentinel.client().execute_command("SENTINEL", "FAILOVER", "mymaster")
        wait_for(lambda: self.master() is self.other(old), "Sentinel")
        conftest.wait_for(self.has_replica, 60, "the old master to follow")
        old.client().client_unpause()

    def stop(self):
        for server in (self.sentinel, *self.servers):
            server.process.kill()
            server.process.wait()
