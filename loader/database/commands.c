/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The table of commands, their dispatch, and what describes them (COMMAND and
 * the HELP subcommands).  A new command is one row here and one function.
 * Names, error texts and the order of checks are those of Redis 7.0.
 */
#include "database/database.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acl/acl.h"
#include "script/script.h"
#include "store/txn.h"
#include "util/glob.h"
#include "util/log.h"

static command_fn cmd_command, cmd_command_count, cmd_command_docs, cmd_command_info,
	cmd_command_list, cmd_help;

#define W  CMD_WRITE
#define R  CMD_READONLY
#define M  CMD_DENYOOM
#define A  CMD_ADMIN
#define NS CMD_NOSCRIPT
#define LS (CMD_LOADING | CMD_STALE)
#define F  CMD_FAST
#define NA CMD_NO_AUTH
#define Q  CMD_QUEUES
#define P  CMD_PUBSUB
#define NM CMD_NO_MULTI
#define AP CMD_APART
#define B  CMD_BUSY

/* clang-format off */
static const struct command config_sub[] = {
	{ "get", cmd_config_get, -3, A | NS | LS, 0, 0, 0, "server", "<pattern> [<pattern> ...]",
	  "Return parameters matching the glob-like <pattern>s and their values.", NULL },
	{ "set", cmd_config_set, -4, A | NS | LS | AP, 0, 0, 0, "server",
	  "<name> <value> [<name> <value> ...]",
	  "Set parameters: all of them, or none.", NULL },
	{ "rewrite", cmd_config_rewrite, 2, A | NS | LS | AP, 0, 0, 0, "server", "",
	  "Write what CONFIG SET has changed to the configuration file.", NULL },
	{ "resetstat", cmd_config_resetstat, 2, A | NS | LS | AP, 0, 0, 0, "server", "",
	  "Reset statistics reported by the INFO command.", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "server", "", "Print this help.", NULL },
	{ .name = NULL },
};

static const struct command client_sub[] = {
	{ "caching", cmd_client_caching, 3, NS | LS, 0, 0, 0, "connection", "<YES|NO>",
	  "Keep the keys of the next command, or do not.", NULL },
	{ "getname", cmd_client_getname, 2, NS | LS, 0, 0, 0, "connection", "",
	  "Return the name of the current connection.", NULL },
	{ "getredir", cmd_client_getredir, 2, NS | LS, 0, 0, 0, "connection", "",
	  "Return the ID of the client that is told of changes instead.", NULL },
	{ "id", cmd_client_id, 2, NS | LS, 0, 0, 0, "connection", "",
	  "Return the ID of the current connection.", NULL },
	{ "info", cmd_client_info, 2, NS | LS, 0, 0, 0, "connection", "",
	  "Return information about the current client connection.", NULL },
	{ "kill", cmd_client_kill, -3, A | NS | LS | AP, 0, 0, 0, "connection",
	  "<ip:port> | <option> <value> [<option> <value> ...]",
	  "Close connections by ID, ADDR, LADDR, USER, TYPE, MAXAGE; SKIPME no: also this.", NULL },
	{ "list", cmd_client_list, -2, A | NS | LS, 0, 0, 0, "connection", "[TYPE <type>] [ID <id> ...]",
	  "Return information about client connections.", NULL },
	{ "no-evict", cmd_client_no_evict, 3, A | NS | LS | AP, 0, 0, 0, "connection", "<ON|OFF>",
	  "Protect the connection from maxmemory-clients.", NULL },
	{ "no-touch", cmd_client_no_touch, 3, NS | LS | AP, 0, 0, 0, "connection", "<ON|OFF>",
	  "Whether reads of this connection are no uses of their keys for eviction.", NULL },
	{ "pause", cmd_client_pause, -3, A | NS | LS | AP, 0, 0, 0, "connection",
	  "<timeout> [WRITE|ALL]", "Postpone commands of all clients for <timeout> ms.", NULL },
	{ "unpause", cmd_client_unpause, 2, A | NS | LS | AP, 0, 0, 0, "connection", "",
	  "End the pause: execute what was postponed.", NULL },
	{ "reply", cmd_client_reply, 3, NS | LS, 0, 0, 0, "connection", "<ON|OFF|SKIP>",
	  "Control the replies sent to the current connection.", NULL },
	{ "unblock", cmd_client_unblock, -3, A | NS | LS, 0, 0, 0, "connection",
	  "<client-id> [TIMEOUT|ERROR]", "Reply 0: no command blocks.", NULL },
	{ "setinfo", cmd_client_setinfo, 4, NS | LS | AP, 0, 0, 0, "connection",
	  "<LIB-NAME|LIB-VER> <value>",
	  "Tell the server the name or version of the client library.", NULL },
	{ "setname", cmd_client_setname, 3, NS | LS | AP, 0, 0, 0, "connection", "<name>",
	  "Assign the name <name> to the current connection.", NULL },
	{ "tracking", cmd_client_tracking, -3, NS | LS | AP, 0, 0, 0, "connection",
	  "<ON|OFF> [REDIRECT <id>] [BCAST] [PREFIX <prefix> ...] [OPTIN] [OPTOUT] [NOLOOP]",
	  "Be told when keys that were read have changed.", NULL },
	{ "trackinginfo", cmd_client_trackinginfo, 2, NS | LS, 0, 0, 0, "connection", "",
	  "Report what CLIENT TRACKING has set.", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "connection", "", "Print this help.", NULL },
	{ .name = NULL },
};

static const struct command object_sub[] = {
	{ "encoding", cmd_object_encoding, 3, R | Q, 2, 2, 1, "generic", "<key>",
	  "Return the representation that Redis would store the value in.", NULL },
	{ "freq", cmd_object_freq, 3, R | AP, 2, 2, 1, "generic", "<key>",
	  "Return how often the key is used, a logarithm up to 255, with an LFU policy.", NULL },
	{ "idletime", cmd_object_idletime, 3, R | Q, 2, 2, 1, "generic", "<key>",
	  "An error: idle times are not recorded.", NULL },
	{ "refcount", cmd_object_refcount, 3, R | Q, 2, 2, 1, "generic", "<key>",
	  "Return the number of references that Redis would hold to the value.", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "generic", "", "Print this help.", NULL },
	{ .name = NULL },
};

static const struct command slowlog_sub[] = {
	{ "get", cmd_slowlog_get, -2, A | LS, 0, 0, 0, "server", "[<count>]",
	  "Return the latest <count> entries: id, time, microseconds, arguments, client.", NULL },
	{ "len", cmd_slowlog_len, 2, A | LS, 0, 0, 0, "server", "",
	  "Return the length of the slowlog.", NULL },
	{ "reset", cmd_slowlog_reset, 2, A | LS | AP, 0, 0, 0, "server",
	  "", "Reset the slowlog.", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "server", "", "Print this help.", NULL },
	{ .name = NULL },
};

static const struct command latency_sub[] = {
	{ "doctor", cmd_latency_doctor, 2, A | NS | LS, 0, 0, 0, "server", "",
	  "Return a human readable latency analysis report.", NULL },
	{ "graph", cmd_latency_graph, 3, A | NS | LS, 0, 0, 0, "server", "<event>",
	  "Return an ASCII latency graph for the <event> class.", NULL },
	{ "histogram", cmd_latency_histogram, -2, A | NS | LS, 0, 0, 0, "server", "[<command> ...]",
	  "Return how long commands took: a cumulative histogram for each.", NULL },
	{ "history", cmd_latency_history, 3, A | NS | LS, 0, 0, 0, "server", "<event>",
	  "Return time-latency samples for the <event> class.", NULL },
	{ "latest", cmd_latency_latest, 2, A | NS | LS, 0, 0, 0, "server", "",
	  "Return the latest latency samples for all events.", NULL },
	{ "reset", cmd_latency_reset, -2, A | NS | LS | AP, 0, 0, 0, "server", "[<event> ...]",
	  "Reset latency data of one or more <event> classes.", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "server", "", "Print this help.", NULL },
	{ .name = NULL },
};

static const struct command memory_sub[] = {
	{ "doctor", cmd_memory_doctor, 2, 0, 0, 0, 0, "server", "",
	  "Return memory problems reports.", NULL },
	{ "malloc-stats", cmd_memory_malloc_stats, 2, 0, 0, 0, 0, "server", "",
	  "Return statistics of the allocator, if it has any.", NULL },
	{ "stats", cmd_memory_stats, 2, 0, 0, 0, 0, "server", "",
	  "Return information about the memory usage of the server.", NULL },
	{ "usage", cmd_memory_usage, -3, R | AP, 2, 2, 1, "server", "<key> [SAMPLES <count>]",
	  "Return the bytes of the slot that holds the key and its value.", NULL },
	{ "purge", cmd_memory_purge, 2, 0, 0, 0, 0, "server", "",
	  "Give free memory of the daemon back to the system.", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "server", "", "Print this help.", NULL },
	{ .name = NULL },
};

static const struct command pubsub_sub[] = {
	{ "channels", cmd_pubsub_channels, -2, P | LS, 0, 0, 0, "pubsub", "[<pattern>]",
	  "Return the currently active channels matching a <pattern> (default: '*').",
	  NULL },
	{ "numpat", cmd_pubsub_numpat, 2, P | LS, 0, 0, 0, "pubsub", "",
	  "Return number of subscriptions to patterns.", NULL },
	{ "numsub", cmd_pubsub_numsub, -2, P | LS, 0, 0, 0, "pubsub", "[<channel> ...]",
	  "Return the number of subscribers for the specified channels, excluding patterns.",
	  NULL },
	{ "shardchannels", cmd_pubsub_shardchannels, -2, P | LS, 0, 0, 0, "pubsub", "[<pattern>]",
	  "Return the currently active shard level channels matching a <pattern> (default: '*').",
	  NULL },
	{ "shardnumsub", cmd_pubsub_shardnumsub, -2, P | LS, 0, 0, 0, "pubsub",
	  "[<shardchannel> ...]",
	  "Return the number of subscribers for the specified shard level channel(s)", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "pubsub", "", "Print this help.", NULL },
	{ .name = NULL },
};

#define NO_MODULES "An error: there are no modules."
static const struct command module_sub[] = {
	{ "list", cmd_module_list, 2, A | NS, 0, 0, 0, "server", "", "Return the modules: none.", NULL },
	{ "load", cmd_module_load, -3, A | NS, 0, 0, 0, "server", "<path> [<arg> ...]", NO_MODULES, NULL },
	{ "loadex", cmd_module_load, -3, A | NS, 0, 0, 0, "server",
	  "<path> [CONFIG <name> <value> ...] [ARGS <arg> ...]", NO_MODULES, NULL },
	{ "unload", cmd_module_load, 3, A | NS, 0, 0, 0, "server", "<name>", NO_MODULES, NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "server", "", "Print this help.", NULL },
	{ .name = NULL },
};

/* Those that only a cluster of several nodes could execute are refused. */
#define REFUSED "An error: this node has all slots, and there is no other."
static const struct command cluster_sub[] = {
	{ "addslots", cmd_cluster, -3, A | CMD_STALE, 0, 0, 0, "cluster",
	  "<slot> [<slot> ...]", REFUSED, NULL },
	{ "addslotsrange", cmd_cluster, -4, A | CMD_STALE, 0, 0, 0, "cluster",
	  "<start> <end> [<start> <end> ...]", REFUSED, NULL },
	{ "bumpepoch", cmd_cluster, 2, A | CMD_STALE, 0, 0, 0, "cluster", "", REFUSED, NULL },
	{ "count-failure-reports", cmd_cluster, 3, A | CMD_STALE, 0, 0, 0, "cluster",
	  "<node-id>", REFUSED, NULL },
	{ "countkeysinslot", cmd_cluster, 3, CMD_STALE, 0, 0, 0, "cluster", "<slot>",
	  "Return the number of keys in <slot>, after a walk over all keys.", NULL },
	{ "delslots", cmd_cluster, -3, A | CMD_STALE, 0, 0, 0, "cluster",
	  "<slot> [<slot> ...]", REFUSED, NULL },
	{ "delslotsrange", cmd_cluster, -4, A | CMD_STALE, 0, 0, 0, "cluster",
	  "<start> <end> [<start> <end> ...]", REFUSED, NULL },
	{ "failover", cmd_cluster, -2, A | CMD_STALE, 0, 0, 0, "cluster",
	  "[FORCE|TAKEOVER]", REFUSED, NULL },
	{ "flushslots", cmd_cluster, 2, A | CMD_STALE, 0, 0, 0, "cluster", "", REFUSED, NULL },
	{ "forget", cmd_cluster, 3, A | CMD_STALE, 0, 0, 0, "cluster", "<node-id>", REFUSED, NULL },
	{ "getkeysinslot", cmd_cluster, 4, CMD_STALE, 0, 0, 0, "cluster", "<slot> <count>",
	  "Return at most <count> keys in <slot>, after a walk over keys.", NULL },
	{ "info", cmd_cluster, 2, CMD_STALE, 0, 0, 0, "cluster", "",
	  "Return information about the cluster.", NULL },
	{ "keyslot", cmd_cluster, 3, CMD_STALE, 0, 0, 0, "cluster", "<key>",
	  "Return the hash slot for <key>.", NULL },
	{ "links", cmd_cluster, 2, CMD_STALE, 0, 0, 0, "cluster", "",
	  "Return the links to other nodes: none.", NULL },
	{ "meet", cmd_cluster, -4, A | CMD_STALE, 0, 0, 0, "cluster",
	  "<ip> <port> [<bus-port>]", REFUSED, NULL },
	{ "myid", cmd_cluster, 2, CMD_STALE, 0, 0, 0, "cluster", "", "Return the node id.", NULL },
	{ "nodes", cmd_cluster, 2, CMD_STALE, 0, 0, 0, "cluster", "",
	  "Return the cluster configuration as seen by the node: this node.", NULL },
	{ "replicas", cmd_cluster, 3, A | CMD_STALE, 0, 0, 0, "cluster",
	  "<node-id>", REFUSED, NULL },
	{ "replicate", cmd_cluster, 3, A | CMD_STALE, 0, 0, 0, "cluster",
	  "<node-id>", REFUSED, NULL },
	{ "reset", cmd_cluster, -2, A | CMD_STALE | NS, 0, 0, 0, "cluster",
	  "[HARD|SOFT]", REFUSED, NULL },
	{ "saveconfig", cmd_cluster, 2, A | CMD_STALE, 0, 0, 0, "cluster", "", REFUSED, NULL },
	{ "set-config-epoch", cmd_cluster, 3, A | CMD_STALE, 0, 0, 0, "cluster",
	  "<epoch>", REFUSED, NULL },
	{ "setslot", cmd_cluster, -4, A | CMD_STALE, 0, 0, 0, "cluster",
	  "<slot> (IMPORTING|MIGRATING|STABLE|NODE <node-id>)", REFUSED, NULL },
	{ "shards", cmd_cluster, 2, CMD_STALE, 0, 0, 0, "cluster", "",
	  "Return the slots and the node that has them.", NULL },
	{ "slaves", cmd_cluster, 3, A | CMD_STALE, 0, 0, 0, "cluster", "<node-id>", REFUSED, NULL },
	{ "slots", cmd_cluster, 2, CMD_STALE, 0, 0, 0, "cluster", "",
	  "Return the slots and the address of the node that has them.", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "cluster", "", "Print this help.", NULL },
	{ .name = NULL },
};

static const struct command acl_sub[] = {
	{ "cat", cmd_acl_cat, -2, NS | LS, 0, 0, 0, "server", "[<category>]",
	  "Return the categories of commands, or the commands of a category.", NULL },
	{ "deluser", cmd_acl_deluser, -3, A | NS | LS | AP, 0, 0, 0, "server",
	  "<username> [<username> ...]",
	  "Delete users, and close their connections.", NULL },
	{ "dryrun", cmd_acl_dryrun, -4, A | NS | LS, 0, 0, 0, "server",
	  "<username> <command> [<arg> ...]",
	  "Return whether the user may execute the command, which is not executed.", NULL },
	{ "genpass", cmd_acl_genpass, -2, NS | LS, 0, 0, 0, "server", "[<bits>]",
	  "Return a random password.", NULL },
	{ "getuser", cmd_acl_getuser, 3, A | NS | LS, 0, 0, 0, "server", "<username>",
	  "Return the rules of a user.", NULL },
	{ "list", cmd_acl_list, 2, A | NS | LS, 0, 0, 0, "server", "",
	  "Return all users as lines of an ACL file.", NULL },
	{ "load", cmd_acl_load, 2, A | NS | LS | AP, 0, 0, 0, "server", "",
	  "Replace all users by those of the ACL file.", NULL },
	{ "log", cmd_acl_log, -2, A | NS | LS | AP, 0, 0, 0, "server", "[<count> | RESET]",
	  "Return what was denied lately.", NULL },
	{ "save", cmd_acl_save, 2, A | NS | LS | AP, 0, 0, 0, "server", "",
	  "Write all users to the ACL file.", NULL },
	{ "setuser", cmd_acl_setuser, -3, A | NS | LS | AP, 0, 0, 0, "server",
	  "<username> [<rule> ...]", "Make a user, or change one by rules.", NULL },
	{ "users", cmd_acl_users, 2, A | NS | LS, 0, 0, 0, "server", "",
	  "Return the names of all users.", NULL },
	{ "whoami", cmd_acl_whoami, 2, NS | LS, 0, 0, 0, "server", "",
	  "Return the user of this connection.", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "server", "", "Print this help.", NULL },
	{ .name = NULL },
};

static const struct command script_sub[] = {
	{ "debug", cmd_script_debug, 3, NS, 0, 0, 0, "scripting", "<YES|SYNC|NO>",
	  "There is no debugger.", NULL },
	{ "exists", cmd_script_exists, -3, NS, 0, 0, 0, "scripting", "<sha1> [<sha1> ...]",
	  "Return which scripts are known.", NULL },
	{ "flush", cmd_script_flush, -2, NS | AP, 0, 0, 0, "scripting", "[ASYNC|SYNC]",
	  "Forget all scripts.", NULL },
	{ "kill", cmd_script_kill, 2, NS | B, 0, 0, 0, "scripting", "",
	  "End the script that is being executed.", NULL },
	{ "load", cmd_script_load, 3, NS | AP, 0, 0, 0, "scripting", "<script>",
	  "Load a script, without executing it.", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "scripting", "", "Print this help.", NULL },
	{ .name = NULL },
};

static const struct command function_sub[] = {
	{ "delete", cmd_function_delete, 3, W | NS | AP, 0, 0, 0, "scripting", "<library-name>",
	  "Delete a library and its functions.", NULL },
	{ "dump", cmd_function_dump, 2, NS, 0, 0, 0, "scripting", "",
	  "Return all libraries in the form that RESTORE takes.", NULL },
	{ "flush", cmd_function_flush, -2, W | NS | AP, 0, 0, 0, "scripting", "[ASYNC|SYNC]",
	  "Delete all libraries.", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "scripting", "", "Print this help.", NULL },
	{ "kill", cmd_function_kill, 2, NS | B, 0, 0, 0, "scripting", "",
	  "End the function that is being executed.", NULL },
	{ "list", cmd_function_list, -2, NS, 0, 0, 0, "scripting",
	  "[LIBRARYNAME <library-name-pattern>] [WITHCODE]", "Return the libraries.", NULL },
	{ "load", cmd_function_load, -3, W | M | NS | AP, 0, 0, 0, "scripting",
	  "[REPLACE] <function-code>", "Make a library of functions.", NULL },
	{ "restore", cmd_function_restore, -3, W | M | NS | AP, 0, 0, 0, "scripting",
	  "<serialized-value> [FLUSH|APPEND|REPLACE]", "Make the libraries of a dump.", NULL },
	{ "stats", cmd_function_stats, 2, NS | B, 0, 0, 0, "scripting", "",
	  "Return the function that is being executed, and how many there are.", NULL },
	{ .name = NULL },
};

static const struct command command_sub[] = {
	{ "count", cmd_command_count, 2, LS, 0, 0, 0, "server", "",
	  "Return the total number of commands in this server.", NULL },
	{ "docs", cmd_command_docs, -2, LS, 0, 0, 0, "server", "[<command-name> ...]",
	  "Return documentation about multiple commands.", NULL },
	{ "info", cmd_command_info, -2, LS, 0, 0, 0, "server", "[<command-name> ...]",
	  "Return details about multiple commands.", NULL },
	{ "getkeys", cmd_command_getkeys, -4, LS, 0, 0, 0, "server", "<full-command>",
	  "Return the keys of a full command.", NULL },
	{ "getkeysandflags", cmd_command_getkeysandflags, -4, LS, 0, 0, 0, "server", "<full-command>",
	  "Return the keys of a full command, and what it does with each.", NULL },
	{ "list", cmd_command_list, -2, LS, 0, 0, 0, "server",
	  "[FILTERBY MODULE <name>|ACLCAT <category>|PATTERN <pattern>]",
	  "Return the names of all commands.", NULL },
	{ "help", cmd_help, 2, LS, 0, 0, 0, "server", "", "Print this help.", NULL },
	{ .name = NULL },
};

static const struct command table[] = {
	/* values */
	{ "get", cmd_get, 2, R | F | Q, 1, 1, 1, "string", "<key>", "Returns the value of a key.", NULL },
	{ "set", cmd_set, -3, W | M | Q, 1, 1, 1, "string",
	  "<key> <value> [NX|XX] [GET] [EX|PX|EXAT|PXAT <time> | KEEPTTL]",
	  "Sets the value of a key, with conditions and an expiry.", NULL },
	{ "setnx", cmd_setnx, 3, W | M | F | Q, 1, 1, 1, "string", "<key> <value>",
	  "Sets the value of a key only if it does not exist.", NULL },
	{ "setex", cmd_setex, 4, W | M | Q, 1, 1, 1, "string", "<key> <seconds> <value>",
	  "Sets the value of a key and its expiry.", NULL },
	{ "psetex", cmd_psetex, 4, W | M | Q, 1, 1, 1, "string", "<key> <milliseconds> <value>",
	  "Sets the value of a key and its expiry.", NULL },
	{ "getset", cmd_getset, 3, W | M | F | Q, 1, 1, 1, "string", "<key> <value>",
	  "Returns the value of a key and sets a new one.", NULL },
	{ "getdel", cmd_getdel, 2, W | F | Q, 1, 1, 1, "string", "<key>",
	  "Returns the value of a key and deletes it.", NULL },
	{ "getex", cmd_getex, -2, W | F | Q, 1, 1, 1, "string",
	  "<key> [EX|PX|EXAT|PXAT <time> | PERSIST]",
	  "Returns the value of a key and changes its expiry.", NULL },
	{ "mget", cmd_mget, -2, R | F | Q, 1, -1, 1, "string", "<key> [<key> ...]",
	  "Returns the values of several keys.", NULL },
	{ "mset", cmd_mset, -3, W | M | Q, 1, -1, 2, "string", "<key> <value> [<key> <value> ...]",
	  "Sets several keys.", NULL },
	{ "msetnx", cmd_msetnx, -3, W | M | CMD_ANY_ARGS, 1, -1, 2, "string",
	  "<key> <value> [<key> <value> ...]",
	  "Sets several keys if none of them exists.", NULL },
	{ "strlen", cmd_strlen, 2, R | F | Q, 1, 1, 1, "string", "<key>",
	  "Returns the length of a value.", NULL },
	{ "incr", cmd_incr, 2, W | M | F | Q, 1, 1, 1, "string", "<key>",
	  "Adds one to the number that is a value.", NULL },
	{ "decr", cmd_decr, 2, W | M | F | Q, 1, 1, 1, "string", "<key>",
	  "Subtracts one from the number that is a value.", NULL },
	{ "incrby", cmd_incrby, 3, W | M | F | Q, 1, 1, 1, "string", "<key> <increment>",
	  "Adds to the number that is a value.", NULL },
	{ "decrby", cmd_decrby, 3, W | M | F | Q, 1, 1, 1, "string", "<key> <decrement>",
	  "Subtracts from the number that is a value.", NULL },
	{ "append", cmd_append, 3, W | M | F | Q, 1, 1, 1, "string", "<key> <value>",
	  "Appends to a value.", NULL },
	/* parts of values, and numbers with a fraction */
	{ "incrbyfloat", cmd_incrbyfloat, 3, W | M | F, 1, 1, 1, "string", "<key> <increment>",
	  "Adds to the floating-point number that is a value.", NULL },
	{ "getrange", cmd_getrange, 4, R, 1, 1, 1, "string", "<key> <start> <end>",
	  "Returns a part of a value.", NULL },
	{ "substr", cmd_getrange, 4, R, 1, 1, 1, "string", "<key> <start> <end>",
	  "Returns a part of a value; the old name of GETRANGE.", NULL },
	{ "setrange", cmd_setrange, 4, W | M, 1, 1, 1, "string", "<key> <offset> <value>",
	  "Overwrites a part of a value.", NULL },
	{ "lcs", cmd_lcs, -3, R, 1, 2, 1, "string",
	  "<key> <key> [LEN] [IDX] [MINMATCHLEN <length>] [WITHMATCHLEN]",
	  "Finds the longest common subsequence of two values.", NULL },
	/* values as arrays of bits */
	{ "setbit", cmd_setbit, 4, W | M, 1, 1, 1, "bitmap", "<key> <offset> <0|1>",
	  "Sets a bit of a value and returns what it was.", NULL },
	{ "getbit", cmd_getbit, 3, R | F, 1, 1, 1, "bitmap", "<key> <offset>",
	  "Returns a bit of a value.", NULL },
	{ "bitcount", cmd_bitcount, -2, R, 1, 1, 1, "bitmap", "<key> [<start> <end> [BYTE|BIT]]",
	  "Counts the bits that are set in a value or a part of it.", NULL },
	{ "bitpos", cmd_bitpos, -3, R, 1, 1, 1, "bitmap", "<key> <0|1> [<start> [<end> [BYTE|BIT]]]",
	  "Finds the first bit that is set, or not, in a value or a part of it.", NULL },
	{ "bitop", cmd_bitop, -4, W | M, 2, -1, 1, "bitmap",
	  "<AND|OR|XOR|NOT> <destination> <key> [<key> ...]",
	  "Combines the bits of several values, and stores the result.", NULL },
	{ "bitfield", cmd_bitfield, -2, W | M, 1, 1, 1, "bitmap",
	  "<key> [GET <type> <offset> | [OVERFLOW WRAP|SAT|FAIL] SET|INCRBY <type> <offset> <value>] ...",
	  "Reads, sets and adds to integers of any size in a value.", NULL },
	{ "bitfield_ro", cmd_bitfield_ro, -2, R | F, 1, 1, 1, "bitmap",
	  "<key> [GET <type> <offset> ...]",
	  "Reads integers of any size in a value.", NULL },
	/* values that count different elements */
	{ "pfadd", cmd_pfadd, -2, W | M | F | CMD_ANY_ARGS, 1, 1, 1, "hyperloglog",
	  "<key> [<element> ...]", "Adds elements to a HyperLogLog.", NULL },
	{ "pfcount", cmd_pfcount, -2, R, 1, -1, 1, "hyperloglog", "<key> [<key> ...]",
	  "Estimates how many different elements were added to HyperLogLogs.", NULL },
	{ "pfmerge", cmd_pfmerge, -2, W | M, 1, -1, 1, "hyperloglog", "<destination> [<key> ...]",
	  "Merges HyperLogLogs into one.", NULL },
	{ "pfdebug", cmd_pfdebug, 3, W | M | A, 2, 2, 1, "hyperloglog",
	  "<DECODE|ENCODING|GETREG|TODENSE> <key>", "Shows how a HyperLogLog is encoded.", NULL },
	/* keys */
	{ "del", cmd_del, -2, W | Q, 1, -1, 1, "generic", "<key> [<key> ...]", "Deletes keys.", NULL },
	{ "unlink", cmd_del, -2, W | F | Q, 1, -1, 1, "generic", "<key> [<key> ...]", "Deletes keys.", NULL },
	{ "exists", cmd_exists, -2, R | F | Q, 1, -1, 1, "generic", "<key> [<key> ...]",
	  "Counts the keys that exist.", NULL },
	{ "touch", cmd_touch, -2, R | F | Q, 1, -1, 1, "generic", "<key> [<key> ...]",
	  "Counts the keys that exist, and counts as an access to them.", NULL },
	{ "type", cmd_type, 2, R | F | Q, 1, 1, 1, "generic", "<key>", "Returns the type of a value.", NULL },
	{ "ttl", cmd_ttl, 2, R | F | Q, 1, 1, 1, "generic", "<key>",
	  "Returns the seconds until a key expires.", NULL },
	{ "pttl", cmd_pttl, 2, R | F | Q, 1, 1, 1, "generic", "<key>",
	  "Returns the milliseconds until a key expires.", NULL },
	{ "expire", cmd_expire, -3, W | F | Q, 1, 1, 1, "generic", "<key> <seconds> [NX|XX|GT|LT]",
	  "Sets the expiry of a key in seconds.", NULL },
	{ "pexpire", cmd_pexpire, -3, W | F | Q, 1, 1, 1, "generic", "<key> <milliseconds> [NX|XX|GT|LT]",
	  "Sets the expiry of a key in milliseconds.", NULL },
	{ "expireat", cmd_expireat, -3, W | F | Q, 1, 1, 1, "generic", "<key> <unix-seconds> [NX|XX|GT|LT]",
	  "Sets the expiry of a key to a Unix time.", NULL },
	{ "pexpireat", cmd_pexpireat, -3, W | F | Q, 1, 1, 1, "generic",
	  "<key> <unix-milliseconds> [NX|XX|GT|LT]",
	  "Sets the expiry of a key to a Unix time in milliseconds.", NULL },
	{ "persist", cmd_persist, 2, W | F, 1, 1, 1, "generic", "<key>",
	  "Removes the expiry of a key.", NULL },
	{ "rename", cmd_rename, 3, W, 1, 2, 1, "generic", "<key> <newkey>",
	  "Renames a key, and overwrites the other one.", NULL },
	{ "renamenx", cmd_renamenx, 3, W | F, 1, 2, 1, "generic", "<key> <newkey>",
	  "Renames a key, if the other one does not exist.", NULL },
	{ "copy", cmd_copy, -3, W | M, 1, 2, 1, "generic",
	  "<source> <destination> [DB <database>] [REPLACE]",
	  "Copies a key with its expiry.", NULL },
	{ "move", cmd_move, 3, W | F, 1, 1, 1, "generic", "<key> <database>",
	  "Moves a key to another database, if it does not exist there.", NULL },
	{ "keys", cmd_keys, 2, R | AP, 0, 0, 0, "generic", "<pattern>",
	  "Returns all keys that match a pattern; SCAN returns some of them at a time.", NULL },
	{ "scan", cmd_scan, -2, R | AP, 0, 0, 0, "generic",
	  "<cursor> [MATCH <pattern>] [COUNT <count>] [TYPE <type>]",
	  "Walks over the keys.", NULL },
	{ "dbsize", cmd_dbsize, 1, R | F | AP, 0, 0, 0, "server", "",
	  "Returns the number of keys.", NULL },
	{ "flushall", cmd_flushall, -1, W | AP, 0, 0, 0, "server", "[ASYNC|SYNC]",
	  "Deletes the keys of all databases.", NULL },
	{ "flushdb", cmd_flushdb, -1, W | AP, 0, 0, 0, "server", "[ASYNC|SYNC]",
	  "Deletes the keys of the selected database.", NULL },
	{ "swapdb", cmd_swapdb, 3, W | F | AP, 0, 0, 0, "server", "<index1> <index2>",
	  "Exchanges two databases, for all clients at once.", NULL },
	/* connections */
	{ "ping", cmd_ping, -1, F, 0, 0, 0, "connection", "[<message>]", "Replies PONG.", NULL },
	{ "echo", cmd_echo, 2, LS | F, 0, 0, 0, "connection", "<message>",
	  "Replies the message.", NULL },
	{ "hello", cmd_hello, -1, NS | LS | F | NA | B | AP, 0, 0, 0, "connection",
	  "[<protover> [AUTH <username> <password>] [SETNAME <name>]]",
	  "Chooses the protocol, authenticates and names the connection.", NULL },
	{ "auth", cmd_auth, -2, NS | LS | F | NA | B | AP, 0, 0, 0, "connection",
	  "[<username>] <password>",
	  "Authenticates the connection.", NULL },
	{ "select", cmd_select, 2, LS | F, 0, 0, 0, "connection", "<index>",
	  "Selects the database.", NULL },
	{ "quit", cmd_quit, -1, NS | LS | F | NA | B, 0, 0, 0, "connection", "",
	  "Closes the connection.", NULL },
	{ "reset", cmd_reset, 1, NS | LS | F | NA | B, 0, 0, 0, "connection", "",
	  "Resets the connection.", NULL },
	{ "client", NULL, -2, 0, 0, 0, 0, "connection", "", "Commands about connections.", client_sub },
	/* publish and subscribe */
	{ "subscribe", cmd_subscribe, -2, P | NS | LS | AP | CMD_ANY_ARGS, 0, 0, 0, "pubsub",
	  "<channel> [<channel> ...]", "Listens for messages published to channels.", NULL },
	{ "unsubscribe", cmd_unsubscribe, -1, P | NS | LS | AP | CMD_ANY_ARGS, 0, 0, 0, "pubsub",
	  "[<channel> ...]", "Stops listening to channels: to these, or to all.", NULL },
	{ "psubscribe", cmd_psubscribe, -2, P | NS | LS | AP | CMD_ANY_ARGS, 0, 0, 0, "pubsub",
	  "<pattern> [<pattern> ...]",
	  "Listens for messages published to channels that match patterns.", NULL },
	{ "punsubscribe", cmd_punsubscribe, -1, P | NS | LS | AP | CMD_ANY_ARGS, 0, 0, 0, "pubsub",
	  "[<pattern> ...]", "Stops listening to patterns: to these, or to all.", NULL },
	{ "ssubscribe", cmd_ssubscribe, -2, P | NS | LS | AP | CMD_ANY_ARGS, 1, -1, 1, "pubsub",
	  "<shardchannel> [<shardchannel> ...]",
	  "Listens for messages published to shard channels.", NULL },
	{ "sunsubscribe", cmd_sunsubscribe, -1, P | NS | LS | AP | CMD_ANY_ARGS, 1, -1, 1, "pubsub",
	  "[<shardchannel> ...]", "Stops listening to shard channels: to these, or to all.", NULL },
	{ "publish", cmd_publish, 3, P | LS | F, 0, 0, 0, "pubsub", "<channel> <message>",
	  "Sends a message to the subscribers of a channel, and returns their number.", NULL },
	{ "spublish", cmd_spublish, 3, P | LS | F, 1, 1, 1, "pubsub", "<shardchannel> <message>",
	  "Sends a message to the subscribers of a shard channel, and returns their number.",
	  NULL },
	{ "pubsub", NULL, -2, 0, 0, 0, 0, "pubsub", "", "Commands about channels.", pubsub_sub },
	/* transactions */
	{ "multi", cmd_multi, 1, NS | LS | F | B | Q, 0, 0, 0, "transactions", "",
	  "Begins a transaction: what follows is queued until EXEC.", NULL },
	{ "exec", cmd_exec, 1, NS | LS, 0, 0, 0, "transactions", "",
	  "Executes all queued commands at once, unless a watched key has changed.", NULL },
	{ "discard", cmd_discard, 1, NS | LS | F | B, 0, 0, 0, "transactions", "",
	  "Forgets all queued commands and watched keys.", NULL },
	{ "watch", cmd_watch, -2, NS | LS | F | CMD_ANY_ARGS, 1, -1, 1, "transactions", "<key> [<key> ...]",
	  "EXEC executes nothing if one of the keys has changed until then.", NULL },
	{ "unwatch", cmd_unwatch, 1, NS | LS | F | B, 0, 0, 0, "transactions", "",
	  "Forgets all watched keys.", NULL },
	/* scripts */
	{ "eval", cmd_eval, -3, NS | CMD_ANY_ARGS, 0, 0, 0, "scripting",
	  "<script> <numkeys> [<key> ...] [<arg> ...]", "Executes a Lua script.", NULL },
	{ "eval_ro", cmd_eval_ro, -3, NS | R | CMD_ANY_ARGS, 0, 0, 0, "scripting",
	  "<script> <numkeys> [<key> ...] [<arg> ...]",
	  "Executes a Lua script that may not write.", NULL },
	{ "evalsha", cmd_evalsha, -3, NS | CMD_ANY_ARGS, 0, 0, 0, "scripting",
	  "<sha1> <numkeys> [<key> ...] [<arg> ...]", "Executes a script that is known.", NULL },
	{ "evalsha_ro", cmd_evalsha_ro, -3, NS | R | CMD_ANY_ARGS, 0, 0, 0, "scripting",
	  "<sha1> <numkeys> [<key> ...] [<arg> ...]",
	  "Executes a script that is known and may not write.", NULL },
	{ "fcall", cmd_fcall, -3, NS | CMD_STALE | CMD_ANY_ARGS, 0, 0, 0, "scripting",
	  "<function> <numkeys> [<key> ...] [<arg> ...]", "Executes a function.", NULL },
	{ "fcall_ro", cmd_fcall_ro, -3, NS | CMD_STALE | R | CMD_ANY_ARGS, 0, 0, 0, "scripting",
	  "<function> <numkeys> [<key> ...] [<arg> ...]",
	  "Executes a function that may not write.", NULL },
	{ "function", NULL, -2, 0, 0, 0, 0, "scripting", "", "Commands about functions.",
	  function_sub },
	{ "script", NULL, -2, 0, 0, 0, 0, "scripting", "", "Commands about scripts.", script_sub },
	/* server */
	{ "info", cmd_info, -1, LS, 0, 0, 0, "server", "[<section> ...]",
	  "Returns information and statistics about the server.", NULL },
	{ "command", cmd_command, -1, LS, 0, 0, 0, "server", "",
	  "Returns details about all commands.", command_sub },
	{ "config", NULL, -2, 0, 0, 0, 0, "server", "", "Commands about the configuration.", config_sub },
	{ "acl", NULL, -2, 0, 0, 0, 0, "server", "", "Commands about users and their rights.", acl_sub },
	{ "memory", NULL, -2, 0, 0, 0, 0, "server", "", "Commands about memory.", memory_sub },
	{ "save", cmd_save, 1, A | NS | NM, 0, 0, 0, "server", "",
	  "Saves a snapshot and waits for it.", NULL },
	{ "bgsave", cmd_bgsave, -1, A | NS | AP, 0, 0, 0, "server", "[SCHEDULE]",
	  "Saves a snapshot in the background.", NULL },
	{ "lastsave", cmd_lastsave, 1, LS | F, 0, 0, 0, "server", "",
	  "Returns the Unix time of the last good save.", NULL },
	{ "shutdown", cmd_shutdown, -1, A | NS | LS | NM | B, 0, 0, 0, "server",
	  "[NOSAVE|SAVE] [NOW] [FORCE]", "Saves if so configured, and ends the server.", NULL },
	/* inspection of keys and server */
	{ "expiretime", cmd_expiretime, 2, R | F | Q, 1, 1, 1, "generic", "<key>",
	  "Returns the Unix time at which a key expires, in seconds.", NULL },
	{ "pexpiretime", cmd_pexpiretime, 2, R | F | Q, 1, 1, 1, "generic", "<key>",
	  "Returns the Unix time at which a key expires, in milliseconds.", NULL },
	{ "randomkey", cmd_randomkey, 1, R | AP, 0, 0, 0, "generic", "", "Returns a random key.", NULL },
	{ "object", NULL, -2, 0, 0, 0, 0, "generic", "", "Commands about values.", object_sub },
	{ "sort", cmd_sort, -2, W | M, 1, 1, 1, "generic",
	  "<key> [BY <pattern>] [LIMIT <offset> <count>] [GET <pattern> ...] [ASC|DESC] [ALPHA] "
	  "[STORE <key>]", "An error if the key exists: a string cannot be sorted.", NULL },
	{ "sort_ro", cmd_sort_ro, -2, R, 1, 1, 1, "generic",
	  "<key> [BY <pattern>] [LIMIT <offset> <count>] [GET <pattern> ...] [ASC|DESC] [ALPHA]",
	  "An error if the key exists: a string cannot be sorted.", NULL },
	{ "wait", cmd_wait, 3, NS, 0, 0, 0, "generic", "<numreplicas> <timeout>",
	  "Replies 0 at once: there are no replicas.", NULL },
	{ "waitaof", cmd_waitaof, 4, NS, 0, 0, 0, "generic", "<numlocal> <numreplicas> <timeout>",
	  "Replies 0 and 0 at once: there are no replicas; with <numlocal> 1 an error.", NULL },
	{ "time", cmd_time, 1, LS | F, 0, 0, 0, "server", "", "Returns the server's time.", NULL },
	{ "role", cmd_role, 1, NS | LS | F, 0, 0, 0, "server", "",
	  "Returns the role in a replication: master, of none.", NULL },
	{ "dump", cmd_dump, 2, R | Q, 1, 1, 1, "generic", "<key>",
	  "Returns a value in the form that RESTORE takes, Redis' too.", NULL },
	{ "restore", cmd_restore, -4, W | M, 1, 1, 1, "generic",
	  "<key> <ttl> <serialized-value> [REPLACE] [ABSTTL] [IDLETIME <seconds>] [FREQ <frequency>]",
	  "Sets a key to a string that DUMP has returned, Redis' too.", NULL },
	{ "debug", cmd_debug, -2, A | NS | LS | AP, 0, 0, 0, "server", "<subcommand> [<argument>]",
	  "For tests: OBJECT, SLEEP, SET-ACTIVE-EXPIRE.", NULL },
	{ "slowlog", NULL, -2, 0, 0, 0, 0, "server", "", "Commands about slow commands.", slowlog_sub },
	{ "latency", NULL, -2, 0, 0, 0, 0, "server", "", "Commands about latency.", latency_sub },
	{ "lolwut", cmd_lolwut, -1, R | F, 0, 0, 0, "server", "[VERSION <version>]",
	  "Returns the version.", NULL },
	{ "monitor", cmd_monitor, 1, A | NS | LS, 0, 0, 0, "server", "",
	  "Shows each command that TCP clients execute; not requests over UDP.", NULL },
	/* refused, with a reason */
	{ "replicaof", cmd_replicaof, 3, A | NS | CMD_STALE, 0, 0, 0, "server", "<host> <port>",
	  "An error, but for NO ONE: there is no replication.", NULL },
	{ "slaveof", cmd_replicaof, 3, A | NS | CMD_STALE, 0, 0, 0, "server", "<host> <port>",
	  "An error, but for NO ONE: there is no replication.", NULL },
	{ "failover", cmd_failover, -1, A | NS | CMD_STALE, 0, 0, 0, "server",
	  "[TO <host> <port> [FORCE]] [ABORT] [TIMEOUT <milliseconds>]",
	  "An error: there are no replicas.", NULL },
	{ "psync", cmd_sync, -3, A | NS, 0, 0, 0, "server", "<replicationid> <offset>",
	  "An error: there is no replication.", NULL },
	{ "sync", cmd_sync, 1, A | NS, 0, 0, 0, "server", "", "An error: there is no replication.", NULL },
	{ "replconf", cmd_sync, -1, A | NS | LS | B, 0, 0, 0, "server", "",
	  "An error: there is no replication.", NULL },
	{ "migrate", cmd_migrate, -6, W, 3, 3, 1, "generic",
	  "<host> <port> <key> <destination-db> <timeout>",
	  "An error: keys move with DUMP and RESTORE.", NULL },
	{ "bgrewriteaof", cmd_bgrewriteaof, 1, A | NS | AP, 0, 0, 0, "server", "",
	  "Write a new base of the append-only file in the background.", NULL },
	{ "module", NULL, -2, 0, 0, 0, 0, "server", "", "Commands about modules.", module_sub },
	/* for clients of a cluster */
	{ "cluster", NULL, -2, 0, 0, 0, 0, "cluster", "", "Commands about the cluster.", cluster_sub },
	{ "asking", cmd_cluster_mode, 1, F, 0, 0, 0, "cluster", "",
	  "Has no effect: no slot moves from one node to another.", NULL },
	{ "readonly", cmd_cluster_mode, 1, LS | F, 0, 0, 0, "cluster", "",
	  "Has no effect: this node is no replica.", NULL },
	{ "readwrite", cmd_cluster_mode, 1, LS | F, 0, 0, 0, "cluster", "",
	  "Has no effect: this node is no replica.", NULL },
};
/* clang-format on */

#define TABLE_SIZE   (sizeof(table) / sizeof(table[0]))
#define NAME_MAX_LEN 16

/* --- look-up --- */

#define SLOTS	   512 /* a power of two, at least four times the commands: few collisions */
#define CALLED_MAX 71  /* bytes of a name that rename-command gives */

_Static_assert(TABLE_SIZE * 4 <= SLOTS, "more slots");
_Static_assert(sizeof(((struct rename *)NULL)->to) == CALLED_MAX + 1, "as long as config.h's");

/* As clients call the commands of the table; NULL = not at all. */
static const char *called[TABLE_SIZE];
static uint16_t slots[SLOTS]; /* 1 + the index of a command in the table, 0 = free */

static unsigned int slot_of(const char *name, size_t len)
{
	unsigned int hash = 2166136261U; /* FNV-1a; | 32 folds the case of letters */

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ ((unsigned char)name[i] | 32U)) * 16777619U;
	return (hash ^ hash >> 16) % SLOTS;
}

static void fill_slots(void)
{
	memset(slots, 0, sizeof(slots));
	for (unsigned int i = 0; i < TABLE_SIZE; i++) {
		unsigned int at;

		if (!called[i])
			continue;
		at = slot_of(called[i], strlen(called[i]));
		while (slots[at])
			at = (at + 1) % SLOTS;
		slots[at] = (uint16_t)(i + 1);
	}
}

static void fill_names(void)
{
	static bool filled;

	for (unsigned int i = 0; !filled && i < TABLE_SIZE; i++)
		called[i] = table[i].name;
	if (!filled)
		fill_slots();
	filled = true;
}

static const struct command *find(const char *name, size_t len)
{
	if (len > CALLED_MAX)
		return NULL;
	for (unsigned int at = slot_of(name, len); slots[at]; at = (at + 1) % SLOTS)
		if (text_is(name, len, called[slots[at] - 1]))
			return &table[slots[at] - 1];
	return NULL;
}

/* Returns what is wrong, NULL = nothing. */
static const char *rename_command(const struct rename *r)
{
	const struct command *cmd = find(r->from, strlen(r->from));

	if (!cmd)
		return "there is no such command";
	if (r->to[0] && find(r->to, strlen(r->to)))
		return "there is a command of the new name";
	called[cmd - table] = r->to[0] ? r->to : NULL;
	fill_slots();
	return NULL;
}

int commands_rename(const struct config_builder *b, char *err, size_t err_len)
{
	static struct rename rename[CONFIG_MAX_RENAME]; /* outlives the configuration */
	const struct config *cfg = b->cfg;
	char place[CONFIG_PLACE];
	size_t len = 0;

	memcpy(rename, cfg->rename, sizeof(rename));
	fill_names();
	err[0] = '\0';
	for (unsigned int i = 0; i < cfg->rename_count && len < err_len; i++) {
		const char *wrong = rename_command(&rename[i]);

		if (wrong)
			len += (size_t)snprintf(err + len, err_len - len,
						"%s%srename-command %s: %s", len ? "\n" : "",
						config_place(b, &rename[i].at, place),
						rename[i].from, wrong);
	}
	return len ? -EINVAL : 0;
}

static const struct command *find_sub(const struct command *cmd, const char *name, size_t len)
{
	for (const struct command *sub = cmd->sub; sub->name; sub++)
		if (text_is(name, len, sub->name))
			return sub;
	return NULL;
}

static const struct command *parent_of(const struct command *cmd)
{
	for (unsigned int i = 0; i < TABLE_SIZE; i++)
		for (const struct command *sub = table[i].sub; sub && sub->name; sub++)
			if (sub == cmd)
				return &table[i];
	return NULL;
}

/* "config|get", as error texts and COMMAND have it. */
const char *command_full_name(const struct command *cmd, char text[COMMAND_NAME_MAX])
{
	const struct command *parent = parent_of(cmd);

	snprintf(text, COMMAND_NAME_MAX, "%s%s%s", parent ? parent->name : "", parent ? "|" : "",
		 cmd->name);
	return text;
}

static size_t sub_count(const struct command *cmd)
{
	size_t n = 0;

	while (cmd->sub && cmd->sub[n].name)
		n++;
	return n;
}

unsigned int command_id(const struct command *cmd)
{
	size_t id = TABLE_SIZE;

	if (cmd >= table && cmd < table + TABLE_SIZE)
		return (unsigned int)(cmd - table);
	for (unsigned int i = 0; i < TABLE_SIZE; id += sub_count(&table[i++]))
		if (cmd >= table[i].sub && cmd < table[i].sub + sub_count(&table[i]))
			return (unsigned int)(id + (size_t)(cmd - table[i].sub));
	return COMMAND_IDS - 1; /* it is in the table */
}

const struct command *command_by_id(unsigned int id)
{
	if (id < TABLE_SIZE)
		return &table[id];
	id -= TABLE_SIZE;
	for (unsigned int i = 0; i < TABLE_SIZE; id -= sub_count(&table[i++]))
		if (id < sub_count(&table[i]))
			return &table[i].sub[id];
	return NULL;
}

/* --- the queue --- */

/*
 * A read, or a change that returns the old value, found no entry.  If a SET did, its record tells.
 */
static bool has_missed(const struct store_op *op, int ret, const struct store_entry *e)
{
	if (op->cause == CAUSE_NONE)
		return false;
	if (ret == -ECANCELED)
		return op->flags & XKV_RETURN && !e->value;
	return ret == -ENOENT && (op->opcode == XKV_OP_GET || op->opcode == XKV_OP_TTL ||
				  op->opcode == XKV_OP_TOUCH || op->flags & XKV_RETURN);
}

/* An operation has found an entry, or made one, or was refused because of what it has found. */
static bool has_found(const struct store_op *op, int ret)
{
	return !ret || ret == -EDOM || ret == -ERANGE ||
	       (ret == -ECANCELED && !(op->flags & XKV_XX));
}

static void on_done(void *arg, unsigned int op, int ret, const struct store_entry *e)
{
	const struct queue *q = arg;
	struct caller *c = q->then[op].caller;
	size_t bytes = c->session.reply.out.bytes;

	if (has_missed(&q->op[op], ret, e))
		changes_miss(c, q->op[op].key, q->op[op].key_len);
	if (!ret)
		tracking_found(c, q->op[op].key, q->op[op].key_len);
	if (has_found(&q->op[op], ret))
		transaction_found(c, c->session.db, q->op[op].key, q->op[op].key_len);
	q->then[op].end(c, q->then[op].note, ret, e);
	measure_errors(c, q->then[op].number);
	if (c->unsent)
		c->worker->unsent_bytes += c->session.reply.out.bytes - bytes;
}

void commands_flush(struct caller *c)
{
	struct queue *q = queue_of(c);

	if (q->group.count)
		group_run(c->worker);
	if (!q->count)
		return;
	store_run(c->worker->ctx, q->op, q->count, on_done, q);
	q->count = 0;
	measure_others(c->worker);
}

/* Sets the store context up as the client's commands have it. */
static void set_up_store(struct caller *c)
{
	struct store_ctx *ctx = c->worker->ctx;

	store_select(ctx, c->session.db);
	store_no_touch(ctx, c->session.no_touch);
	store_origin(ctx, tracking_of(c)->origin);
}

/* The first client that has something queued, NULL = there is none. */
static struct caller *first_queued(const struct queue *q)
{
	if (q->group.count)
		return q->group.exec[0].caller;
	return q->count ? q->then[0].caller : NULL;
}

/* What clients have queued in earlier turns. */
static void flush(struct worker *w)
{
	struct queue *q = (struct queue *)w->commands;
	struct caller *first = first_queued(q);

	if (first) {
		set_up_store(first);
		commands_flush(first);
	}
	measure_batch(w);
	if (!q->measure.running) /* a client may be freed in the middle of another one's command */
		store_origin(w->ctx, 0);
}

/* May operations of both be run together? */
static bool are_alike(struct caller *a, struct caller *b)
{
	return a->session.db == b->session.db && a->session.no_touch == b->session.no_touch &&
	       tracking_of(a)->origin == tracking_of(b)->origin;
}

static bool end_turn(struct caller *c, bool stays)
{
	if (stays && first_queued(queue_of(c)))
		return true;
	flush(c->worker);
	return false;
}

void command_queue(struct caller *c, const struct store_op *op, command_end_fn *end,
		   unsigned int note)
{
	struct queue *q = queue_of(c);

	if (q->count == QUEUE_OPS || q->group.count)
		commands_flush(c);
	if (is_dropped(c))
		return;
	q->op[q->count] = *op;
	q->then[q->count].caller = c;
	q->then[q->count].end = end;
	q->then[q->count].number = measure_operation(c);
	q->then[q->count++].note = note;
}

struct reply *reply_now(struct caller *c)
{
	commands_flush(c);
	return reply_to(c);
}

void end_yes_no(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	(void)note;
	(void)e;
	if (ret && ret != -ENOENT && ret != -ECANCELED)
		reply_store_error(c, ret);
	else
		reply_int(reply_to(c), !ret);
}

/* --- errors --- */

#define VALUE_TOO_LONG "ERR value is larger than 1 MiB"
#define RESULT_TOO_LONG                                                                            \
	"ERR string exceeds maximum allowed size (proto-max-bulk-len)" /* as in Redis */
#define NOT_AN_INTEGER "ERR value is not an integer or out of range"

_Static_assert(XKV_VALUE_MAX == 1 << 20, "a text above names it");
_Static_assert(STORE_TXN_KEYS == 65536 && STORE_TXN_BYTES == 256 << 20, "a text below does");

void reply_store_error(struct caller *c, int error)
{
	switch (error) {
	case -ENOSPC:
		reply_error(reply_to(c),
			    store_at_limit(c->srv->store)
				    ? "OOM command not allowed when used memory > "
				      "'maxmemory'."
				    : "OOM command not allowed when the store is full: "
				      "raise max-keys, add memory or delete keys");
		break;
	case -EBUSY:
		reply_error(reply_to(c), "BUSY the key is changed by too many others: try again");
		break;
	case -E2BIG:
		reply_error(reply_to(c), "ERR a transaction of more than 65536 keys or 256 MiB");
		break;
	case -EFBIG:
		reply_error(reply_to(c), "ERR the transaction changes more keys than can be told "
					 "to those who track keys, or want keyspace events");
		break;
	case -ESHUTDOWN:
		reply_error(reply_to(c), "ERR the server is shutting down");
		break;
	case -EMSGSIZE:
		reply_error(reply_to(c), RESULT_TOO_LONG);
		break;
	case -EDOM:
		reply_error(reply_to(c), NOT_AN_INTEGER);
		break;
	case -ERANGE:
		reply_error(reply_to(c), "ERR increment or decrement would overflow");
		break;
	default:
		log_warning("a store operation failed: %s", strerror(-error));
		reply_error(reply_to(c), "ERR the store failed: %s", strerror(-error));
	}
}

bool check_key(struct caller *c, const struct resp_arg *key)
{
	if (key->len <= XKV_LONG_KEY_MAX)
		return true;
	reply_error(reply_now(c), "ERR key is longer than %d bytes", XKV_LONG_KEY_MAX);
	return false;
}

bool check_value(struct caller *c, const struct resp_arg *value)
{
	if (value->len <= XKV_VALUE_MAX)
		return true;
	reply_error(reply_now(c), VALUE_TOO_LONG);
	return false;
}

bool check_integer(struct caller *c, const struct resp_arg *arg, int64_t *out)
{
	if (text_to_i64(arg->ptr, arg->len, out))
		return true;
	reply_error(reply_now(c), NOT_AN_INTEGER);
	return false;
}

/* Bytes of an argument to be shown in an error: up to a NUL, as in Redis. */
static int shown(const struct resp_arg *arg, size_t max)
{
	return (int)strnlen(arg->ptr, arg->len < max ? arg->len : max);
}

static void unknown_command(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const char *reason = missing_reason(&argv[0]);
	char args[512];
	size_t len = 0;

	if (reason) {
		reply_error(reply_now(c), "ERR unknown command '%.*s': %s", shown(&argv[0], 128),
			    argv[0].ptr, reason);
		return;
	}
	args[0] = '\0';
	for (unsigned int i = 1; i < argc && len < 128; i++)
		len += (size_t)snprintf(args + len, sizeof(args) - len, "'%.*s' ",
					shown(&argv[i], 128 - len), argv[i].ptr);
	reply_error(reply_now(c), "ERR unknown command '%.*s', with args beginning with: %s",
		    shown(&argv[0], 128), argv[0].ptr, args);
}

static void unknown_subcommand(struct caller *c, const struct command *cmd,
			       const struct resp_arg *sub)
{
	char upper[NAME_MAX_LEN + 1];
	size_t i;

	for (i = 0; cmd->name[i] && i < NAME_MAX_LEN; i++)
		upper[i] = (char)toupper((unsigned char)cmd->name[i]);
	upper[i] = '\0';
	reply_error(reply_now(c), "ERR unknown subcommand '%.*s'. Try %s HELP.", shown(sub, 128),
		    sub->ptr, upper);
}

/* --- dispatch --- */

/* A browser that was made to send HTTP here must not have its lines executed as commands. */
static bool is_http(const struct resp_arg *name)
{
	return arg_is(name, "post") || arg_is(name, "host:");
}

static void refuse_http(struct caller *c)
{
	char peer[ADDRESS_TEXT];

	c->kind->address(c, true, peer);
	log_warning("possible attack: client %s sends HTTP to this port; closing it", peer);
	c->dead = true;
}

bool command_arity_ok(const struct command *cmd, unsigned int argc)
{
	return cmd->arity >= 0 ? argc == (unsigned int)cmd->arity
			       : argc >= (unsigned int)-cmd->arity;
}

const struct command *command_find(unsigned int argc, const struct resp_arg *argv)
{
	const struct command *cmd = find(argv[0].ptr, argv[0].len);

	return cmd && cmd->sub && argc > 1 ? find_sub(cmd, argv[1].ptr, argv[1].len) : cmd;
}

/* The command or subcommand; NULL if there is none, and the error was replied. */
static const struct command *named(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct command *cmd = command_find(argc, argv);

	if (cmd)
		return cmd;
	cmd = find(argv[0].ptr, argv[0].len);
	if (cmd)
		unknown_subcommand(c, cmd, &argv[1]);
	else if (is_http(&argv[0]))
		refuse_http(c);
	else
		unknown_command(c, argc, argv);
	return NULL;
}

/* Why it may not use its keys, as an error; NULL = it may. */
static const char *refused_keys(const struct caller *c, const struct command *cmd,
				unsigned int argc, const struct resp_arg *argv)
{
	if (c->srv->cfg->cluster && !command_in_one_slot(cmd, argc, argv))
		return "CROSSSLOT Keys in request don't hash to the same slot";
	if (c->session.monitor && cmd->flags & (CMD_READONLY | CMD_WRITE))
		return "ERR Replica can't interact with the keyspace"; /* Redis' text */
	return NULL;
}

#define MISCONF                                                                                    \
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist " \
	"to disk. Commands that may modify the data set are disabled, because this instance is "   \
	"configured to report errors during writes if RDB snapshotting fails "                     \
	"(stop-writes-on-bgsave-error option). Please check the Redis logs for details about the " \
	"RDB error."

/* Replies why a command is not executed; an EXEC that is refused ends the transaction. */
static void refuse(struct caller *c, const struct command *cmd, const char *code, const char *why)
{
	if (cmd->fn == cmd_exec) {
		transaction_end(c);
		reply_error(reply_now(c), "EXECABORT Transaction discarded because of: %s%s",
			    strcmp(code, "ERR ") ? code : "", why);
	} else {
		reply_error(reply_now(c), "%s%s", code, why);
	}
}

/* May the client's user execute it?  If not, the error was replied. */
static bool permitted(struct caller *c, const struct command *cmd, unsigned int argc,
		      const struct resp_arg *argv)
{
	char text[COMMAND_NAME_MAX + 64], name[COMMAND_NAME_MAX];

	switch (acl_check_client(c, ACL_COMMAND, cmd, argc, argv)) {
	case ACL_OK:
		return true;
	case ACL_DENIED_KEY:
		refuse(c, cmd, "NOPERM ",
		       "this user has no permissions to access one of the keys used as arguments");
		return false;
	case ACL_DENIED_CHANNEL:
		refuse(c, cmd, "NOPERM ",
		       "this user has no permissions to access one of the channels used as "
		       "arguments");
		return false;
	default:
		snprintf(text, sizeof(text), "this user has no permissions to run the '%s' command",
			 command_full_name(cmd, name));
		refuse(c, cmd, "NOPERM ", text);
		return false;
	}
}

static void refuse_write(struct caller *c, const struct command *cmd)
{
	const char *error = c->srv->log_error;
	char text[sizeof(c->srv->log_error) + 64];

	snprintf(text, sizeof(text), "MISCONF Errors writing to the AOF file: %s", error);
	refuse(c, cmd, "", error[0] ? text : MISCONF);
}

/* May it be executed?  If not, the error was replied. */
static bool accepted(struct caller *c, const struct command *cmd, unsigned int argc,
		     const struct resp_arg *argv)
{
	char name[COMMAND_NAME_MAX], text[COMMAND_NAME_MAX + 64];
	const char *why;

	if (!command_arity_ok(cmd, argc)) {
		snprintf(text, sizeof(text), "wrong number of arguments for '%s' command",
			 command_full_name(cmd, name));
		refuse(c, cmd, "ERR ", text);
		return false;
	}
	/* keys in a list are done in slices if they are queued */
	if ((cmd->last >= 0 || !(cmd->flags & CMD_QUEUES)) && !(cmd->flags & CMD_ANY_ARGS) &&
	    argc > PLAIN_ARGS_MAX) {
		snprintf(text, sizeof(text), "too many arguments for '%s' command",
			 command_full_name(cmd, name));
		refuse(c, cmd, "ERR ", text);
		return false;
	}
	if (!(cmd->flags & CMD_NO_AUTH) && caller_needs_auth(c)) {
		refuse(c, cmd, "NOAUTH ", "Authentication required.");
		return false;
	}
	if (!acl_user_of(c)->unlimited && !permitted(c, cmd, argc, argv))
		return false;
	why = refused_keys(c, cmd, argc, argv);
	if (why) {
		reply_error(reply_now(c), "%s", why);
		return false;
	}
	if (c->srv->writes_refused && (command_writes(c, cmd) || cmd->fn == cmd_ping)) {
		refuse_write(c, cmd);
		return false;
	}
	if (pubsub_refuses(c, cmd)) {
		reply_error(reply_now(c),
			    "%s Can't execute '%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING "
			    "/ QUIT / RESET are allowed in this context",
			    cmd->fn == cmd_exec ? "EXECABORT Transaction discarded because of:"
						: "ERR",
			    command_full_name(cmd, name));
		return false;
	}
	if (c->srv->busy && !(cmd->flags & CMD_BUSY)) {
		refuse(c, cmd, "", script_busy(c));
		return false;
	}
	return true;
}

static unsigned int run_flags(struct caller *c)
{
	const struct command *last = c->session.last;
	unsigned int flags = progress_of(c)->step ? RUN_UNFINISHED : 0;

	/* SWAPDB waits for a grace period, some milliseconds */
	if (last && (!(last->flags & (CMD_FAST | CMD_QUEUES)) || last->fn == cmd_swapdb))
		flags |= RUN_LONG;
	if (last && last->flags & CMD_WRITE)
		flags |= RUN_WRITES;
	if (last && (last->fn == cmd_exec || !strcmp(last->group, "scripting")))
		flags |= RUN_MAY_WRITE;
	return flags;
}

/* Executes a command that may be executed. */
static void execute(struct caller *c, const struct command *cmd, unsigned int argc,
		    const struct resp_arg *argv)
{
	unsigned int db = c->session.db;

	if (!(cmd->flags & CMD_QUEUES) || measure_is_full(c->worker))
		commands_flush(c);
	if (is_dropped(c))
		return;
	c->session.last = cmd;
	measure_begin(c, cmd, 0);
	tracking_before(c, cmd, argc, argv);
	cmd->fn(c, argc, argv);
	measure_end(c);
	if (!LIST_EMPTY(&shared_of(c->srv)->monitors))
		monitor_tell(c, db, cmd, argc, argv);
}

/* The step of what was postponed: it is executed from the beginning when the pause is over. */
static bool run_later(struct caller *c)
{
	(void)c;
	return false;
}

static unsigned int run(struct caller *c)
{
	unsigned int argc = c->call.argc;
	const struct resp_arg *argv = c->call.argv;
	struct caller *first = first_queued(queue_of(c));
	const struct command *cmd;
	bool waits = false;

	if (first && !are_alike(first, c))
		flush(c->worker);
	client_skip_begin(c);
	set_up_store(c);
	cmd = named(c, argc, argv);
	if (cmd && !accepted(c, cmd, argc, argv)) {
		measure_rejected(c, cmd);
		cmd = NULL;
	}
	transaction_of(c)->failed |= c->session.multi && !cmd;
	if (cmd && client_postpones(c, cmd, argv)) {
		long_begin(c, run_later);
		caller_wait(c, &c->worker->pause.waiters);
		return RUN_UNFINISHED;
	}
	if (cmd && !(waits = group_takes(c, cmd)) && !transaction_queues(c, cmd, argc, argv))
		execute(c, cmd, argc, argv);
	tracking_after(c, cmd);
	client_skip_end(c);
	return waits ? 0 : run_flags(c);
}

static void refuse_long(struct caller *c)
{
	client_skip_begin(c);
	reply_error(reply_now(c),
		    "ERR an argument is longer than proto-max-bulk-len (%llu bytes); values are "
		    "limited to 1 MiB",
		    (unsigned long long)c->srv->cfg->proto_max_bulk_len);
	transaction_of(c)->failed |= c->session.multi;
	client_skip_end(c);
}

static unsigned int resume(struct caller *c)
{
	if (c->srv->busy)
		return run_flags(c); /* the store context is another command's */
	if (progress_of(c)->step == run_later) {
		long_end(c);
		return run(c);
	}
	flush(c->worker);
	store_reselect(c->worker->ctx, progress_of(c)->stored);
	store_no_touch(c->worker->ctx, c->session.no_touch);
	measure_begin(c, c->session.last, progress_of(c)->ns);
	store_origin(c->worker->ctx, tracking_of(c)->origin);
	long_continue(c);
	measure_end(c);
	client_skip_end(c);
	return run_flags(c);
}

static void free_shared(struct server *s)
{
	struct shared *shared = shared_of(s);

	changes_free(&shared->changes);
	tracking_free(&shared->tracked);
	pubsub_free(&shared->pubsub);
	slowlog_trim(&shared->slowlog, 0);
	interpreter_free(shared->lua);
	functions_free(shared);
}

static void cancel(struct caller *c)
{
	long_end(c);
	transaction_end(c);
	pubsub_leave(c);
	tracking_end(c);
	monitor_end(c);
}

static size_t memory(struct caller *c)
{
	return found_memory(progress_of(c)->found) + lcs_memory(progress_of(c)->lcs) +
	       transaction_memory(transaction_of(c)) + tracking_of(c)->prefix_bytes;
}

static void every_second(struct server *s)
{
	info_sample(s);
	changes_second(s);
}

const struct executor *commands_executor(void)
{
	static const struct executor executor = {
		.caller_bytes = sizeof(struct client_state),
		.worker_bytes = sizeof(struct queue),
		.server_bytes = sizeof(struct shared),
		.run = run,
		.refuse_long = refuse_long,
		.resume = resume,
		.end_turn = end_turn,
		.flush = flush,
		.before_replies = changes_before_replies,
		.cancel = cancel,
		.memory = memory,
		.server_free = free_shared,
		.start = changes_start,
		.sample = every_second,
		.requires_auth = acl_requires_auth,
		.trust = acl_trust,
		.driver_rights = driver_rights,
	};

	fill_names();
	if (command_by_id(COMMAND_IDS))
		abort(); /* too many commands for their numbers */
	acl_prepare();
	driver_prepare();
	return &executor;
}

/* --- COMMAND --- */

struct flag_name {
	unsigned int flag;
	const char *name;
};

#define SHOWN_FLAGS (~0U & ~(CMD_QUEUES | CMD_ANY_ARGS | CMD_APART))

static const struct flag_name flag_names[] = {
	{ CMD_WRITE, "write" },	      { CMD_READONLY, "readonly" }, { CMD_DENYOOM, "denyoom" },
	{ CMD_ADMIN, "admin" },	      { CMD_NOSCRIPT, "noscript" }, { CMD_LOADING, "loading" },
	{ CMD_STALE, "stale" },	      { CMD_FAST, "fast" },	    { CMD_NO_AUTH, "no_auth" },
	{ CMD_NO_MULTI, "no_multi" }, { CMD_PUBSUB, "pubsub" },	    { CMD_BUSY, "allow_busy" },
};

static void reply_flags(struct reply *r, unsigned int flags)
{
	reply_set(r, (size_t)__builtin_popcount(flags & SHOWN_FLAGS));
	for (unsigned int i = 0; i < sizeof(flag_names) / sizeof(flag_names[0]); i++)
		if (flags & flag_names[i].flag)
			reply_status(r, flag_names[i].name);
}

static void reply_categories(struct reply *r, const struct command *cmd)
{
	unsigned int categories = acl_categories(cmd);
	char name[32];

	reply_set(r, (size_t)__builtin_popcount(categories));
	for (unsigned int i = 0; i < ACL_CATEGORIES; i++) {
		snprintf(name, sizeof(name), "@%s", acl_category_names[i]);
		if (categories >> i & 1)
			reply_status(r, name);
	}
}

/* The positions of the keys in the form of Redis 7: one range that starts at an index. */
static void reply_key_specs(struct reply *r, const struct command *cmd)
{
	reply_set(r, cmd->first ? 1 : 0);
	if (!cmd->first)
		return;
	reply_map(r, 3);
	reply_text(r, "flags");
	reply_key_flags(r, command_key_flags(cmd));
	reply_text(r, "begin_search");
	reply_map(r, 2);
	reply_text(r, "type");
	reply_text(r, "index");
	reply_text(r, "spec");
	reply_map(r, 1);
	reply_text(r, "index");
	reply_int(r, cmd->first);
	reply_text(r, "find_keys");
	reply_map(r, 2);
	reply_text(r, "type");
	reply_text(r, "range");
	reply_text(r, "spec");
	reply_map(r, 3);
	reply_text(r, "lastkey");
	reply_int(r, cmd->last < 0 ? cmd->last : cmd->last - cmd->first);
	reply_text(r, "keystep");
	reply_int(r, cmd->step);
	reply_text(r, "limit");
	reply_int(r, 0);
}

static void reply_command(struct reply *r, const struct command *cmd)
{
	char name[COMMAND_NAME_MAX];

	reply_array(r, 10);
	reply_text(r, command_full_name(cmd, name));
	reply_int(r, cmd->arity);
	reply_flags(r, cmd->flags);
	reply_int(r, cmd->first);
	reply_int(r, cmd->last);
	reply_int(r, cmd->step);
	reply_categories(r, cmd);
	reply_set(r, 0); /* tips, which are about clusters */
	reply_key_specs(r, cmd);
	reply_array(r, sub_count(cmd));
	for (size_t i = 0; i < sub_count(cmd); i++)
		reply_command(r, &cmd->sub[i]);
}

static void cmd_command(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	(void)argc;
	(void)argv;
	reply_array(reply_to(c), TABLE_SIZE);
	for (unsigned int i = 0; i < TABLE_SIZE; i++)
		reply_command(reply_to(c), &table[i]);
}

static void cmd_command_count(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	(void)argc;
	(void)argv;
	reply_int(reply_to(c), TABLE_SIZE);
}

/* Finds "get" or "config|get". */
static const struct command *find_full(const struct resp_arg *name)
{
	const char *bar = memchr(name->ptr, '|', name->len);
	size_t len = bar ? (size_t)(bar - name->ptr) : name->len;
	const struct command *cmd = find(name->ptr, len);

	if (!bar || !cmd)
		return cmd;
	return cmd->sub ? find_sub(cmd, bar + 1, name->len - len - 1) : NULL;
}

static void cmd_command_info(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (argc == 2) {
		cmd_command(c, argc, argv);
		return;
	}
	reply_array(reply_to(c), argc - 2);
	for (unsigned int i = 2; i < argc; i++) {
		const struct command *cmd = find_full(&argv[i]);

		if (cmd)
			reply_command(reply_to(c), cmd);
		else
			reply_null(reply_to(c));
	}
}

static void cmd_command_docs(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	unsigned int known = 0;

	if (argc == 2) {
		reply_map(reply_to(c), TABLE_SIZE);
		for (unsigned int i = 0; i < TABLE_SIZE; i++)
			reply_docs(reply_to(c), &table[i]);
		return;
	}
	for (unsigned int i = 2; i < argc; i++)
		known += find_full(&argv[i]) != NULL;
	reply_map(reply_to(c), known);
	for (unsigned int i = 2; i < argc; i++)
		if (find_full(&argv[i]))
			reply_docs(reply_to(c), find_full(&argv[i]));
}

/* What COMMAND LIST shows. */
struct list_filter {
	unsigned int categories; /* one of these */
	struct glob pattern;
	bool none; /* commands of a module */
};

/* Adds a command and its subcommands to a list, if they match. */
static size_t list_names(struct reply *r, const struct command *cmd, const struct list_filter *f)
{
	char name[COMMAND_NAME_MAX];
	size_t count = 0;

	command_full_name(cmd, name);
	if (!f->none && acl_categories(cmd) & f->categories &&
	    glob_test(&f->pattern, name, strlen(name))) {
		reply_text(r, name);
		count++;
	}
	for (size_t i = 0; i < sub_count(cmd); i++)
		count += list_names(r, &cmd->sub[i], f);
	return count;
}

/* FILTERBY MODULE|ACLCAT|PATTERN and its value.  NULL, or the error. */
static const char *list_filter(unsigned int argc, const struct resp_arg *argv,
			       struct list_filter *f)
{
	f->categories = ~0U;
	f->none = false;
	glob_compile(&f->pattern, "*", 1, false);
	if (argc == 2)
		return NULL;
	if (argc != 5 || !arg_is(&argv[2], "filterby"))
		return "ERR syntax error";
	if (arg_is(&argv[3], "pattern"))
		return glob_compile(&f->pattern, argv[4].ptr, argv[4].len, true)
			       ? NULL
			       : "ERR " GLOB_TOO_LONG;
	if (arg_is(&argv[3], "aclcat"))
		f->categories = acl_category(argv[4].ptr, argv[4].len);
	else
		f->none = true;
	return !f->none || arg_is(&argv[3], "module") ? NULL : "ERR syntax error";
}

static void cmd_command_list(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct list_filter filter;
	const char *error = list_filter(argc, argv, &filter);
	struct reply names;
	size_t count = 0;

	if (error) {
		reply_error(reply_to(c), "%s", error);
		return;
	}
	reply_part(&names, reply_to(c));
	for (unsigned int i = 0; i < TABLE_SIZE; i++)
		count += list_names(&names, &table[i], &filter);
	reply_array(reply_to(c), count);
	reply_splice(reply_to(c), &names);
}

/* The HELP subcommand of any command that has subcommands. */
static void cmd_help(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct command *cmd = find(argv[0].ptr, argv[0].len);
	char text[256];
	size_t at;

	(void)argc;
	reply_array(reply_to(c), 1 + 2 * sub_count(cmd));
	snprintf(text, sizeof(text),
		 "%s <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", cmd->name);
	for (at = 0; cmd->name[at]; at++)
		text[at] = (char)toupper((unsigned char)text[at]);
	reply_status(reply_to(c), text);
	for (const struct command *sub = cmd->sub; sub->name; sub++) {
		snprintf(text, sizeof(text), "%s%s%s", sub->name, sub->usage[0] ? " " : "",
			 sub->usage);
		for (at = 0; sub->name[at]; at++)
			text[at] = (char)toupper((unsigned char)text[at]);
		reply_status(reply_to(c), text);
		snprintf(text, sizeof(text), "    %s", sub->summary);
		reply_status(reply_to(c), text);
	}
}
