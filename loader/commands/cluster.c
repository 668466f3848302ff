/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * CLUSTER, READONLY, READWRITE and ASKING: with `cluster-enabled emulated` this server looks to
 * clients like a cluster of one node, which has all slots.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "database/database.h"

#define BUS_PORT  10000 /* as in Redis, above the port of clients; nothing listens there */
#define LAST_SLOT (CLUSTER_SLOTS - 1)

/* --- slots --- */

/* CRC-16/XMODEM, four bits at a time. */
static uint16_t crc16(const char *bytes, size_t len)
{
	static const uint16_t table[16] = {
		0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7,
		0x8108, 0x9129, 0xa14a, 0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef,
	};
	unsigned int crc = 0;

	for (size_t i = 0; i < len; i++) {
		unsigned int byte = (unsigned char)bytes[i];

		crc = (crc << 4 & 0xffff) ^ table[crc >> 12 ^ byte >> 4];
		crc = (crc << 4 & 0xffff) ^ table[crc >> 12 ^ (byte & 15)];
	}
	return (uint16_t)crc;
}

unsigned int cluster_slot(const char *key, size_t len)
{
	const char *open = memchr(key, '{', len), *close = NULL;

	if (open)
		close = memchr(open + 1, '}', len - (size_t)(open + 1 - key));
	if (close && close > open + 1) {
		key = open + 1;
		len = (size_t)(close - key);
	}
	return crc16(key, len) % CLUSTER_SLOTS;
}

/* --- this node --- */

/* Another one after each start: nothing refers to it. */
static const char *node_id(const struct caller *c)
{
	return c->srv->run_id;
}

/* Where this client has reached us: what it is told to connect to. */
struct endpoint {
	char text[ADDRESS_TEXT];
	const char *host; /* in `text`; "" = none (no IP): clients keep the one they have */
	int port;
};

static void find_endpoint(const struct caller *c, struct endpoint *e)
{
	char *colon, *end;

	c->kind->address(c, false, e->text);
	e->host = "";
	e->port = (int)server_port(c->srv);
	colon = strrchr(e->text, ':');
	if (!colon || !atoi(colon + 1))
		return;
	e->port = atoi(colon + 1);
	*colon = '\0';
	e->host = e->text;
	end = colon - 1;
	if (e->text[0] == '[' && *end == ']') {
		*end = '\0';
		e->host++;
	}
}

/* --- subcommands --- */

typedef void subcommand_fn(struct caller *c, const struct resp_arg *argv);

static void cluster_info(struct caller *c, const struct resp_arg *argv)
{
	static const char text[] = "cluster_state:ok\r\n"
				   "cluster_slots_assigned:16384\r\n"
				   "cluster_slots_ok:16384\r\n"
				   "cluster_slots_pfail:0\r\n"
				   "cluster_slots_fail:0\r\n"
				   "cluster_known_nodes:1\r\n"
				   "cluster_size:1\r\n"
				   "cluster_current_epoch:0\r\n"
				   "cluster_my_epoch:0\r\n"
				   "cluster_stats_messages_sent:0\r\n"
				   "cluster_stats_messages_received:0\r\n"
				   "total_cluster_links_buffer_limit_exceeded:0\r\n";

	reply_verbatim(reply_to(c), text, strlen(text));
}

static void cluster_keyslot(struct caller *c, const struct resp_arg *argv)
{
	reply_int(reply_to(c), cluster_slot(argv[2].ptr, argv[2].len));
}

/* No node is connected to this one. */
static void cluster_links(struct caller *c, const struct resp_arg *argv)
{
	reply_array(reply_to(c), 0);
}

static void cluster_myid(struct caller *c, const struct resp_arg *argv)
{
	reply_text(reply_to(c), node_id(c));
}

static void cluster_nodes(struct caller *c, const struct resp_arg *argv)
{
	char text[ADDRESS_TEXT + 128];
	struct endpoint e;
	int len;

	find_endpoint(c, &e);
	len = snprintf(text, sizeof(text), "%s %s:%d@%d myself,master - 0 0 0 connected 0-%d\n",
		       node_id(c), e.host, e.port, e.port + BUS_PORT, LAST_SLOT);
	reply_verbatim(reply_to(c), text, (size_t)len);
}

static void cluster_slots(struct caller *c, const struct resp_arg *argv)
{
	struct reply *r = reply_to(c);
	struct endpoint e;

	find_endpoint(c, &e);
	reply_array(r, 1);
	reply_array(r, 3);
	reply_int(r, 0);
	reply_int(r, LAST_SLOT);
	reply_array(r, 4);
	reply_text(r, e.host);
	reply_int(r, e.port);
	reply_text(r, node_id(c));
	reply_map(r, 0); /* other names of it */
}

static void reply_field(struct reply *r, const char *name, const char *value)
{
	reply_text(r, name);
	reply_text(r, value);
}

static void cluster_shards(struct caller *c, const struct resp_arg *argv)
{
	struct reply *r = reply_to(c);
	struct endpoint e;

	find_endpoint(c, &e);
	reply_array(r, 1);
	reply_map(r, 2);
	reply_text(r, "slots");
	reply_array(r, 2);
	reply_int(r, 0);
	reply_int(r, LAST_SLOT);
	reply_text(r, "nodes");
	reply_array(r, 1);
	reply_map(r, 7);
	reply_field(r, "id", node_id(c));
	reply_text(r, "port");
	reply_int(r, e.port);
	reply_field(r, "ip", e.host);
	reply_field(r, "endpoint", e.host);
	reply_field(r, "role", "master");
	reply_text(r, "replication-offset");
	reply_int(r, 0);
	reply_field(r, "health", "online");
}

static void cluster_countkeysinslot(struct caller *c, const struct resp_arg *argv)
{
	int64_t slot;

	if (!check_integer(c, &argv[2], &slot))
		return;
	if (slot < 0 || slot > LAST_SLOT)
		reply_error(reply_to(c), "ERR Invalid slot");
	else
		slot_count_keys(c, (unsigned int)slot);
}

static void cluster_getkeysinslot(struct caller *c, const struct resp_arg *argv)
{
	int64_t slot, keys;

	if (!check_integer(c, &argv[2], &slot) || !check_integer(c, &argv[3], &keys))
		return;
	if (slot < 0 || slot > LAST_SLOT || keys < 0)
		reply_error(reply_to(c), "ERR Invalid slot or number of keys");
	else
		slot_list_keys(c, (unsigned int)slot, (uint64_t)keys);
}

/* All others are about further nodes, or about which slots are whose. */
static const struct {
	const char *name;
	subcommand_fn *fn;
} subcommands[] = {
	{ "countkeysinslot", cluster_countkeysinslot },
	{ "getkeysinslot", cluster_getkeysinslot },
	{ "info", cluster_info },
	{ "keyslot", cluster_keyslot },
	{ "links", cluster_links },
	{ "myid", cluster_myid },
	{ "nodes", cluster_nodes },
	{ "shards", cluster_shards },
	{ "slots", cluster_slots },
};

/* --- commands --- */

static bool is_emulated(struct caller *c)
{
	if (!c->srv->cfg->cluster)
		reply_error(reply_to(c), "ERR This instance has cluster support disabled");
	return c->srv->cfg->cluster;
}

void cmd_cluster(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	char name[COMMAND_NAME_MAX];

	if (!is_emulated(c))
		return;
	for (size_t i = 0; i < sizeof(subcommands) / sizeof(subcommands[0]); i++)
		if (arg_is(&argv[1], subcommands[i].name)) {
			subcommands[i].fn(c, argv);
			return;
		}
	reply_error(reply_to(c),
		    "ERR %s is not supported: this node has all slots, and there is no other",
		    command_full_name(command_find(argc, argv), name));
}

void cmd_cluster_mode(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (is_emulated(c))
		reply_ok(reply_to(c));
}
