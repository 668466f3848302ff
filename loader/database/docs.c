/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What COMMAND DOCS says of a command beside its summary: since when it is, what it costs, and its
 * arguments.  All of it is in one table, by full name; a command's arguments are a text:
 *
 *	name:TYPE	TYPE is a letter of type_names[]; a digit behind it says which of the
 *			positions of keys in COMMAND INFO it is
 *	NX		short for nx:t=NX: a word that stands for itself
 *	(...)		inner arguments: of a block (b) all, of a choice (o) one
 *	=WORD		the word that stands before it
 *	@6.2.0 !7.0.0	since when it is, and since when it is deprecated
 *	? * +		optional; repeated; repeated with its word
 */
#include <ctype.h>
#include <string.h>

#include "database/database.h"

/* clang-format off */
static const struct doc {
	const char *name, *since, *complexity, *arguments; /* complexity: NULL = nothing to say */
} docs[] = {
	/* string */
	{ "append", "2.0.0", "O(1)", "key:k0 value:s" },
	{ "decr", "1.0.0", "O(1)", "key:k0" },
	{ "decrby", "1.0.0", "O(1)", "key:k0 decrement:i" },
	{ "get", "1.0.0", "O(1)", "key:k0" },
	{ "getdel", "6.2.0", "O(1)", "key:k0" },
	{ "getex", "6.2.0", "O(1)",
	  "key:k0 expiration:o(seconds:i=EX milliseconds:i=PX unix-time-seconds:u=EXAT "
	  "unix-time-milliseconds:u=PXAT PERSIST)?" },
	{ "getrange", "2.4.0", "O(N), N: bytes that are returned", "key:k0 start:i end:i" },
	{ "getset", "1.0.0", "O(1)", "key:k0 value:s" },
	{ "incr", "1.0.0", "O(1)", "key:k0" },
	{ "incrby", "1.0.0", "O(1)", "key:k0 increment:i" },
	{ "incrbyfloat", "2.6.0", "O(1)", "key:k0 increment:d" },
	{ "lcs", "7.0.0", "O(N*M), N and M: lengths of the values",
	  "key1:k0 key2:k0 LEN? IDX? len:i=MINMATCHLEN? WITHMATCHLEN?" },
	{ "mget", "1.0.0", "O(N), N: number of keys", "key:k0*" },
	{ "mset", "1.0.1", "O(N), N: number of keys", "key_value:b(key:k0 value:s)*" },
	{ "msetnx", "1.0.1", "O(N), N: number of keys", "key_value:b(key:k0 value:s)*" },
	{ "psetex", "2.6.0", "O(1)", "key:k0 milliseconds:i value:s" },
	{ "set", "1.0.0", "O(1)",
	  "key:k0 value:s condition:o(NX XX)@2.6.12? GET@6.2.0? "
	  "expiration:o(seconds:i=EX@2.6.12 milliseconds:i=PX@2.6.12 "
	  "unix-time-seconds:u=EXAT@6.2.0 unix-time-milliseconds:u=PXAT@6.2.0 KEEPTTL@6.0.0)?" },
	{ "setex", "2.0.0", "O(1)", "key:k0 seconds:i value:s" },
	{ "setnx", "1.0.0", "O(1)", "key:k0 value:s" },
	{ "setrange", "2.2.0", "O(N), N: length of the value", "key:k0 offset:i value:s" },
	{ "strlen", "2.2.0", "O(1)", "key:k0" },
	{ "substr", "1.0.0", "O(N), N: bytes that are returned", "key:k0 start:i end:i" },
	/* bitmap */
	{ "bitcount", "2.6.0", "O(N), N: bytes of the range",
	  "key:k0 index:b(start:i end:i index_unit:o(BYTE BIT)@7.0.0?)?" },
	{ "bitfield", "3.2.0", "O(1) for each operation",
	  "key:k0 operation:o(encoding_offset:b(encoding:s offset:i)=GET "
	  "write:b(wrap_sat_fail:o(WRAP SAT FAIL)=OVERFLOW? "
	  "write_operation:o(encoding_offset_value:b(encoding:s offset:i value:i)=SET "
	  "encoding_offset_increment:b(encoding:s offset:i increment:i)=INCRBY)))?*" },
	{ "bitfield_ro", "6.0.0", "O(1) for each operation",
	  "key:k0 encoding_offset:b(encoding:s offset:i)=GET?*+" },
	{ "bitop", "2.6.0", "O(N), N: bytes of all values", "operation:s destkey:k0 key:k1*" },
	{ "bitpos", "2.8.7", "O(N), N: bytes of the range",
	  "key:k0 bit:i index:b(start:i end_index:b(end:i index_unit:o(BYTE BIT)@7.0.0?)?)?" },
	{ "getbit", "2.2.0", "O(1)", "key:k0 offset:i" },
	{ "setbit", "2.2.0", "O(1)", "key:k0 offset:i value:i" },
	/* hyperloglog */
	{ "pfadd", "2.8.9", "O(1) for each element", "key:k0 element:s?*" },
	{ "pfcount", "2.8.9", "O(N), N: number of keys", "key:k0*" },
	{ "pfdebug", "2.8.9", "N/A", "subcommand:s key:k0" },
	{ "pfmerge", "2.8.9", "O(N), N: number of keys", "destkey:k0 sourcekey:k1*" },
	/* generic */
	{ "copy", "6.2.0", "O(N), N: length of the value",
	  "source:k0 destination:k1 destination-db:i=DB? REPLACE?" },
	{ "del", "1.0.0", "O(N), N: number of keys", "key:k0*" },
	{ "dump", "2.6.0", "O(N), N: length of the value", "key:k0" },
	{ "exists", "1.0.0", "O(N), N: number of keys", "key:k0*" },
	{ "expire", "1.0.0", "O(1)", "key:k0 seconds:i condition:o(NX XX GT LT)@7.0.0?" },
	{ "expireat", "1.2.0", "O(1)",
	  "key:k0 unix-time-seconds:u condition:o(NX XX GT LT)@7.0.0?" },
	{ "expiretime", "7.0.0", "O(1)", "key:k0" },
	{ "keys", "1.0.0", "O(N), N: number of keys in the store", "pattern:p" },
	{ "migrate", "2.6.0", "O(1): an error",
	  "host:s port:i key_or_empty_string:o(key:k0 empty_string:t=) destination-db:i "
	  "timeout:i COPY@3.0.0? REPLACE@3.0.0? authentication:o(password:s=AUTH@4.0.7? "
	  "username_password:b(username:s password:s)=AUTH2@6.0.0?)? key:k1=KEYS@3.0.6?*" },
	{ "move", "1.0.0", "O(1)", "key:k0 db:i" },
	{ "object", "2.2.3", "Depends on the subcommand", "" },
	{ "object|encoding", "2.2.3", "O(1)", "key:k0" },
	{ "object|freq", "4.0.0", "O(1)", "key:k0" },
	{ "object|help", "6.2.0", "O(1)", "" },
	{ "object|idletime", "2.2.3", "O(1)", "key:k0" },
	{ "object|refcount", "2.2.3", "O(1)", "key:k0" },
	{ "persist", "2.2.0", "O(1)", "key:k0" },
	{ "pexpire", "2.6.0", "O(1)", "key:k0 milliseconds:i condition:o(NX XX GT LT)@7.0.0?" },
	{ "pexpireat", "2.6.0", "O(1)",
	  "key:k0 unix-time-milliseconds:u condition:o(NX XX GT LT)@7.0.0?" },
	{ "pexpiretime", "7.0.0", "O(1)", "key:k0" },
	{ "pttl", "2.6.0", "O(1)", "key:k0" },
	{ "randomkey", "1.0.0", "O(1)", "" },
	{ "rename", "1.0.0", "O(1)", "key:k0 newkey:k1" },
	{ "renamenx", "1.0.0", "O(1)", "key:k0 newkey:k1" },
	{ "restore", "2.6.0", "O(N), N: length of the value",
	  "key:k0 ttl:i serialized-value:s REPLACE@3.0.0? ABSTTL@5.0.0? "
	  "seconds:i=IDLETIME@5.0.0? frequency:i=FREQ@5.0.0?" },
	{ "scan", "2.8.0", "O(1) for every call, O(N) for all, N: number of keys in the store",
	  "cursor:i pattern:p=MATCH? count:i=COUNT? type:s=TYPE@6.0.0?" },
	{ "sort", "1.0.0", "O(1): nothing is sorted",
	  "key:k0 pattern:p1=BY? offset_count:b(offset:i count:i)=LIMIT? pattern:p1=GET?*+ "
	  "order:o(ASC DESC)? sorting:t=ALPHA? destination:k2=STORE?" },
	{ "sort_ro", "7.0.0", "O(1): nothing is sorted",
	  "key:k0 pattern:p1=BY? offset_count:b(offset:i count:i)=LIMIT? pattern:p1=GET?*+ "
	  "order:o(ASC DESC)? sorting:t=ALPHA?" },
	{ "touch", "3.2.1", "O(N), N: number of keys", "key:k0*" },
	{ "ttl", "1.0.0", "O(1)", "key:k0" },
	{ "type", "1.0.0", "O(1)", "key:k0" },
	{ "unlink", "4.0.0", "O(N), N: number of keys", "key:k0*" },
	{ "wait", "3.0.0", "O(1)", "numreplicas:i timeout:i" },
	{ "waitaof", "7.2.0", "O(1)", "numlocal:i numreplicas:i timeout:i" },
	/* connection */
	{ "auth", "1.0.0", "O(1)", "username:s@6.0.0? password:s" },
	{ "client", "2.4.0", "Depends on the subcommand", "" },
	{ "client|caching", "6.0.0", "O(1)", "mode:o(YES NO)" },
	{ "client|getname", "2.6.9", "O(1)", "" },
	{ "client|getredir", "6.0.0", "O(1)", "" },
	{ "client|help", "5.0.0", "O(1)", "" },
	{ "client|id", "5.0.0", "O(1)", "" },
	{ "client|info", "6.2.0", "O(1)", "" },
	{ "client|kill", "2.4.0", "O(N), N: number of clients",
	  "filter:o(ip:port:s!2.8.12 new-format:o(client-id:i=ID@2.8.12? "
	  "normal_master_slave_pubsub:o(NORMAL MASTER@3.2.0 SLAVE REPLICA@5.0.0 "
	  "PUBSUB)=TYPE@2.8.12? username:s=USER? ip:port:s=ADDR? ip:port:s=LADDR@6.2.0? "
	  "yes/no:s=SKIPME? maxage:i=MAXAGE@7.4.0?)*)" },
	{ "client|list", "2.4.0", "O(N), N: number of clients",
	  "normal_master_replica_pubsub:o(NORMAL MASTER REPLICA PUBSUB)=TYPE@5.0.0? "
	  "id:b(client-id:i*)=ID@6.2.0?" },
	{ "client|no-evict", "7.0.0", "O(1)", "enabled:o(ON OFF)" },
	{ "client|no-touch", "7.2.0", "O(1)", "enabled:o(ON OFF)" },
	{ "client|pause", "2.9.50", "O(1)", "timeout:i mode:o(WRITE ALL)@6.2.0?" },
	{ "client|reply", "3.2.0", "O(1)", "on_off_skip:o(ON OFF SKIP)" },
	{ "client|setinfo", "7.2.0", "O(1)", "attr:o(libname:s=LIB-NAME libver:s=LIB-VER)" },
	{ "client|setname", "2.6.9", "O(1)", "connection-name:s" },
	{ "client|tracking", "6.0.0", "O(1)",
	  "status:o(ON OFF) client-id:i=REDIRECT? prefix:s=PREFIX?*+ BCAST? OPTIN? OPTOUT? "
	  "NOLOOP?" },
	{ "client|trackinginfo", "6.2.0", "O(1)", "" },
	{ "client|unblock", "5.0.0", "O(1)", "client-id:i timeout_error:o(TIMEOUT ERROR)?" },
	{ "client|unpause", "6.2.0", "O(N), N: number of paused clients", "" },
	{ "echo", "1.0.0", "O(1)", "message:s" },
	{ "hello", "6.0.0", "O(1)",
	  "arguments:b(protover:i username_password:b(username:s password:s)=AUTH? "
	  "clientname:s=SETNAME?)?" },
	{ "ping", "1.0.0", "O(1)", "message:s?" },
	{ "quit", "1.0.0", "O(1)", "" },
	{ "reset", "6.2.0", "O(1)", "" },
	{ "select", "1.0.0", "O(1)", "index:i" },
	/* transactions */
	{ "discard", "2.0.0", "O(N), N: number of queued commands", "" },
	{ "exec", "1.2.0", "Depends on the commands of the transaction", "" },
	{ "multi", "1.2.0", "O(1)", "" },
	{ "unwatch", "2.2.0", "O(1)", "" },
	{ "watch", "2.2.0", "O(N), N: number of keys", "key:k0*" },
	/* scripts */
	{ "eval", "2.6.0", "Depends on the script", "script:s numkeys:i key:k0?* arg:s?*" },
	{ "eval_ro", "7.0.0", "Depends on the script", "script:s numkeys:i key:k0?* arg:s?*" },
	{ "evalsha", "2.6.0", "Depends on the script", "sha1:s numkeys:i key:k0?* arg:s?*" },
	{ "evalsha_ro", "7.0.0", "Depends on the script", "sha1:s numkeys:i key:k0?* arg:s?*" },
	{ "fcall", "7.0.0", "Depends on the function", "function:s numkeys:i key:k0?* arg:s?*" },
	{ "fcall_ro", "7.0.0", "Depends on the function",
	  "function:s numkeys:i key:k0?* arg:s?*" },
	{ "function", "7.0.0", "Depends on the subcommand", "" },
	{ "function|delete", "7.0.0", "O(N), N: number of its functions", "library-name:s" },
	{ "function|dump", "7.0.0", "O(N), N: bytes of all libraries", "" },
	{ "function|flush", "7.0.0", "O(N), N: number of functions", "async:o(ASYNC SYNC)?" },
	{ "function|help", "7.0.0", "O(1)", "" },
	{ "function|kill", "7.0.0", "O(1)", "" },
	{ "function|list", "7.0.0", "O(N), N: number of functions",
	  "library-name-pattern:s=LIBRARYNAME? WITHCODE?" },
	{ "function|load", "7.0.0", "O(N), N: bytes of the library",
	  "REPLACE? function-code:s" },
	{ "function|restore", "7.0.0", "O(N), N: number of functions",
	  "serialized-value:s policy:o(FLUSH APPEND REPLACE)?" },
	{ "function|stats", "7.0.0", "O(1)", "" },
	{ "script", "2.6.0", "Depends on the subcommand", "" },
	{ "script|debug", "3.2.0", "O(1)", "mode:o(YES SYNC NO)" },
	{ "script|exists", "2.6.0", "O(N), N: number of scripts that are asked for", "sha1:s*" },
	{ "script|flush", "2.6.0", "O(N), N: number of scripts", "async:o(ASYNC SYNC)@6.2.0?" },
	{ "script|help", "5.0.0", "O(1)", "" },
	{ "script|kill", "2.6.0", "O(1)", "" },
	{ "script|load", "2.6.0", "O(N), N: bytes of the script", "script:s" },
	/* server */
	{ "acl", "6.0.0", "Depends on the subcommand", "" },
	{ "acl|cat", "6.0.0", "O(1)", "categoryname:s?" },
	{ "acl|deluser", "6.0.0", "O(1) for each user", "username:s*" },
	{ "acl|dryrun", "7.0.0", "O(1)", "username:s command:s arg:s?*" },
	{ "acl|genpass", "6.0.0", "O(1)", "bits:i?" },
	{ "acl|getuser", "6.0.0", "O(N), N: number of rules", "username:s" },
	{ "acl|help", "6.0.0", "O(1)", "" },
	{ "acl|list", "6.0.0", "O(N), N: number of users", "" },
	{ "acl|load", "6.0.0", "O(N), N: number of users", "" },
	{ "acl|log", "6.0.0", "O(N), N: number of entries", "operation:o(count:i RESET)?" },
	{ "acl|save", "6.0.0", "O(N), N: number of users", "" },
	{ "acl|setuser", "6.0.0", "O(N), N: number of rules", "username:s rule:s?*" },
	{ "acl|users", "6.0.0", "O(N), N: number of users", "" },
	{ "acl|whoami", "6.0.0", "O(1)", "" },
	{ "bgrewriteaof", "1.0.0", "O(1)", "" },
	{ "bgsave", "1.0.0", "O(1)", "SCHEDULE@3.2.2?" },
	{ "command", "2.8.13", "O(N), N: number of commands", "" },
	{ "command|count", "2.8.13", "O(1)", "" },
	{ "command|docs", "7.0.0", "O(N), N: number of commands asked for", "command-name:s?*" },
	{ "command|getkeys", "2.8.13", "O(N), N: number of arguments", "" },
	{ "command|getkeysandflags", "7.0.0", "O(N), N: number of arguments", "" },
	{ "command|help", "5.0.0", "O(1)", "" },
	{ "command|info", "2.8.13", "O(N), N: number of commands asked for", "command-name:s?*" },
	{ "command|list", "7.0.0", "O(N), N: number of commands",
	  "filterby:o(module-name:s=MODULE category:s=ACLCAT pattern:p=PATTERN)=FILTERBY?" },
	{ "config", "2.0.0", "Depends on the subcommand", "" },
	{ "config|get", "2.0.0", "O(N), N: number of directives", "parameter:b(parameter:s)*" },
	{ "config|help", "5.0.0", "O(1)", "" },
	{ "config|resetstat", "2.0.0", "O(1)", "" },
	{ "config|rewrite", "2.8.0", "O(1)", "" },
	{ "config|set", "2.0.0", "O(N), N: number of directives",
	  "parameter_value:b(parameter:s value:s)*" },
	{ "dbsize", "1.0.0", "O(1)", "" },
	{ "debug", "1.0.0", "Depends on the subcommand", "" },
	{ "failover", "6.2.0", "O(1)",
	  "target:b(host:s port:i FORCE?)=TO? ABORT? milliseconds:i=TIMEOUT?" },
	{ "flushall", "1.0.0", "O(N), N: number of keys in the store",
	  "async:o(ASYNC@4.0.0 SYNC@6.2.0)?" },
	{ "flushdb", "1.0.0", "O(N), N: number of keys in the database",
	  "async:o(ASYNC@4.0.0 SYNC@6.2.0)?" },
	{ "info", "1.0.0", "O(1)", "section:s?*" },
	{ "lastsave", "1.0.0", "O(1)", "" },
	{ "latency", "2.8.13", "Depends on the subcommand", "" },
	{ "latency|doctor", "2.8.13", "O(1)", "" },
	{ "latency|graph", "2.8.13", "O(1)", "event:s" },
	{ "latency|help", "2.8.13", "O(1)", "" },
	{ "latency|histogram", "7.0.0", "O(N), N: number of commands", "command:s?*" },
	{ "latency|history", "2.8.13", "O(1)", "event:s" },
	{ "latency|latest", "2.8.13", "O(1)", "" },
	{ "latency|reset", "2.8.13", "O(1)", "event:s?*" },
	{ "lolwut", "5.0.0", NULL, "version:i=VERSION?" },
	{ "memory", "4.0.0", "Depends on the subcommand", "" },
	{ "memory|doctor", "4.0.0", "O(1)", "" },
	{ "memory|help", "4.0.0", "O(1)", "" },
	{ "memory|malloc-stats", "4.0.0", "Depends on the memory that is free", "" },
	{ "memory|purge", "4.0.0", "Depends on the memory that is free", "" },
	{ "memory|stats", "4.0.0", "O(1)", "" },
	{ "memory|usage", "4.0.0", "O(1)", "key:k0 count:i=SAMPLES?" },
	{ "module", "4.0.0", "Depends on the subcommand", "" },
	{ "module|help", "5.0.0", "O(1)", "" },
	{ "module|list", "4.0.0", "O(1)", "" },
	{ "module|load", "4.0.0", "O(1)", "path:s arg:s?*" },
	{ "module|loadex", "7.0.0", "O(1)",
	  "path:s configs:b(name:s value:s)=CONFIG?*+ args:b(arg:s)=ARGS?*" },
	{ "module|unload", "4.0.0", "O(1)", "name:s" },
	{ "monitor", "1.0.0", NULL, "" },
	{ "psync", "2.8.0", NULL, "replicationid:s offset:i" },
	{ "replconf", "3.0.0", "O(1)", "" },
	{ "replicaof", "5.0.0", "O(1)", "args:o(host-port:b(host:s port:i) no-one:b(NO ONE))" },
	{ "role", "2.8.12", "O(1)", "" },
	{ "save", "1.0.0", "O(N), N: number of keys in the store", "" },
	{ "shutdown", "1.0.0", "O(N) if it saves, N: number of keys in the store; else O(1)",
	  "nosave_save:o(NOSAVE SAVE)? NOW@7.0.0? FORCE@7.0.0? ABORT@7.0.0?" },
	{ "slaveof", "1.0.0", "O(1)", "args:o(host-port:b(host:s port:i) no-one:b(NO ONE))" },
	{ "slowlog", "2.2.12", "Depends on the subcommand", "" },
	{ "slowlog|get", "2.2.12", "O(N), N: number of entries", "count:i?" },
	{ "slowlog|help", "6.2.0", "O(1)", "" },
	{ "slowlog|len", "2.2.12", "O(1)", "" },
	{ "slowlog|reset", "2.2.12", "O(N), N: number of entries", "" },
	{ "swapdb", "4.0.0", "O(1)", "index1:i index2:i" },
	{ "sync", "1.0.0", NULL, "" },
	{ "time", "2.6.0", "O(1)", "" },
	/* cluster */
	{ "asking", "3.0.0", "O(1)", "" },
	{ "cluster", "3.0.0", "Depends on the subcommand", "" },
	{ "cluster|addslots", "3.0.0", "O(1)", "slot:i*" },
	{ "cluster|addslotsrange", "7.0.0", "O(1)",
	  "start-slot_end-slot:b(start-slot:i end-slot:i)*" },
	{ "cluster|bumpepoch", "3.0.0", "O(1)", "" },
	{ "cluster|count-failure-reports", "3.0.0", "O(1)", "node-id:s" },
	{ "cluster|countkeysinslot", "3.0.0", "O(N), N: number of keys in the store", "slot:i" },
	{ "cluster|delslots", "3.0.0", "O(1)", "slot:i*" },
	{ "cluster|delslotsrange", "7.0.0", "O(1)",
	  "start-slot_end-slot:b(start-slot:i end-slot:i)*" },
	{ "cluster|failover", "3.0.0", "O(1)", "options:o(FORCE TAKEOVER)?" },
	{ "cluster|flushslots", "3.0.0", "O(1)", "" },
	{ "cluster|forget", "3.0.0", "O(1)", "node-id:s" },
	{ "cluster|getkeysinslot", "3.0.0", "O(N), N: number of keys in the store",
	  "slot:i count:i" },
	{ "cluster|help", "5.0.0", "O(1)", "" },
	{ "cluster|info", "3.0.0", "O(1)", "" },
	{ "cluster|keyslot", "3.0.0", "O(1)", "key:s" },
	{ "cluster|links", "7.0.0", "O(1)", "" },
	{ "cluster|meet", "3.0.0", "O(1)", "ip:s port:i cluster_bus_port:i@4.0.0?" },
	{ "cluster|myid", "3.0.0", "O(1)", "" },
	{ "cluster|nodes", "3.0.0", "O(1)", "" },
	{ "cluster|replicas", "5.0.0", "O(1)", "node-id:s" },
	{ "cluster|replicate", "3.0.0", "O(1)", "node-id:s" },
	{ "cluster|reset", "3.0.0", "O(1)", "hard_soft:o(HARD SOFT)?" },
	{ "cluster|saveconfig", "3.0.0", "O(1)", "" },
	{ "cluster|set-config-epoch", "3.0.0", "O(1)", "config-epoch:i" },
	{ "cluster|setslot", "3.0.0", "O(1)",
	  "slot:i subcommand:o(node-id:s=IMPORTING node-id:s=MIGRATING node-id:s=NODE STABLE)" },
	{ "cluster|shards", "7.0.0", "O(1)", "" },
	{ "cluster|slaves", "3.0.0", "O(1)", "node-id:s" },
	{ "cluster|slots", "3.0.0", "O(1)", "" },
	{ "readonly", "3.0.0", "O(1)", "" },
	{ "readwrite", "3.0.0", "O(1)", "" },
	/* pubsub */
	{ "psubscribe", "2.0.0", "O(N), N: number of patterns", "pattern:b(pattern:p)*" },
	{ "publish", "2.0.0", "O(N+M), N: subscribers of the channel, M: patterns",
	  "channel:s message:s" },
	{ "pubsub", "2.8.0", "Depends on the subcommand", "" },
	{ "pubsub|channels", "2.8.0", "O(N), N: number of channels", "pattern:p?" },
	{ "pubsub|help", "6.2.0", "O(1)", "" },
	{ "pubsub|numpat", "2.8.0", "O(1)", "" },
	{ "pubsub|numsub", "2.8.0", "O(N), N: number of channels asked for", "channel:s?*" },
	{ "pubsub|shardchannels", "7.0.0", "O(N), N: number of channels", "pattern:p?" },
	{ "pubsub|shardnumsub", "7.0.0", "O(N), N: number of channels asked for",
	  "shardchannel:s?*" },
	{ "punsubscribe", "2.0.0", "O(N), N: number of patterns", "pattern:p?*" },
	{ "spublish", "7.0.0", "O(N), N: subscribers of the channel", "shardchannel:s message:s" },
	{ "ssubscribe", "7.0.0", "O(N), N: number of channels", "shardchannel:s*" },
	{ "subscribe", "2.0.0", "O(N), N: number of channels", "channel:s*" },
	{ "sunsubscribe", "7.0.0", "O(N), N: number of channels", "shardchannel:s?*" },
	{ "unsubscribe", "2.0.0", "O(N), N: number of channels", "channel:s?*" },
};
/* clang-format on */

static const struct doc *find_doc(const char *name)
{
	for (size_t i = 0; i < sizeof(docs) / sizeof(docs[0]); i++)
		if (strcmp(docs[i].name, name) == 0)
			return &docs[i];
	return NULL;
}

/* --- arguments --- */

static const struct {
	char letter;
	const char *name;
} type_names[] = {
	{ 's', "string" }, { 'i', "integer" }, { 'd', "double" },
	{ 'k', "key" },	   { 'p', "pattern" }, { 'u', "unix-time" },
	{ 'o', "oneof" },  { 'b', "block" },   { 't', "pure-token" },
};

#define DELIMITERS " ()=@!?*+"

/* A part of the text; `at` is NULL if there is none. */
struct part {
	const char *at;
	size_t len;
};

struct argument {
	struct part name, token, since, deprecated;
	const char *inner; /* NULL = none */
	char type;
	int key; /* -1 = none */
	bool optional, repeated, token_repeated;
};

static struct part part_from(const char **at)
{
	struct part part = { *at, strcspn(*at, DELIMITERS) };

	*at += part.len;
	return part;
}

/* Behind the parenthesis that closes the one before `at`. */
static const char *skip_inner(const char *at)
{
	for (int depth = 1; depth; at++)
		depth += (*at == '(') - (*at == ')');
	return at;
}

static struct argument named_argument(const char **at)
{
	struct part word = part_from(at);
	const char *colon = memrchr(word.at, ':', word.len);
	struct argument a = { .name = word, .type = 't', .key = -1 };

	if (!colon) {
		a.token = word;
		return a;
	}
	a.name.len = (size_t)(colon - word.at);
	a.type = colon[1];
	if (isdigit((unsigned char)colon[2]))
		a.key = colon[2] - '0';
	return a;
}

/* Reads one argument; returns where the next one is, or the end of the list. */
static const char *read_argument(const char *at, struct argument *a)
{
	*a = named_argument(&at);
	for (;;) {
		switch (*at++) {
		case '(':
			a->inner = at;
			at = skip_inner(at);
			break;
		case '=':
			a->token = part_from(&at);
			break;
		case '@':
			a->since = part_from(&at);
			break;
		case '!':
			a->deprecated = part_from(&at);
			break;
		case '?':
			a->optional = true;
			break;
		case '*':
			a->repeated = true;
			break;
		case '+':
			a->token_repeated = true;
			break;
		case ' ':
			return at;
		default:
			return at - 1;
		}
	}
}

static bool at_end(const char *at)
{
	return !*at || *at == ')';
}

static size_t count_arguments(const char *at)
{
	struct argument a;
	size_t n = 0;

	for (; !at_end(at); n++)
		at = read_argument(at, &a);
	return n;
}

static void reply_part_of(struct reply *r, const char *field, const struct part *part)
{
	if (!part->at)
		return;
	reply_text(r, field);
	reply_bulk(r, part->at, part->len);
}

static void reply_name(struct reply *r, const struct argument *a)
{
	char name[64];
	size_t len = a->name.len < sizeof(name) ? a->name.len : sizeof(name);

	/* That of NX is "nx". */
	for (size_t i = 0; i < len; i++)
		name[i] = (char)tolower((unsigned char)a->name.at[i]);
	reply_text(r, "name");
	reply_bulk(r, name, len);
}

static void reply_argument_flags(struct reply *r, const struct argument *a)
{
	size_t n = (size_t)a->optional + a->repeated + a->token_repeated;

	if (!n)
		return;
	reply_text(r, "flags");
	reply_set(r, n);
	if (a->optional)
		reply_status(r, "optional");
	if (a->repeated)
		reply_status(r, "multiple");
	if (a->token_repeated)
		reply_status(r, "multiple_token");
}

static void reply_type(struct reply *r, char letter)
{
	size_t i = 0;

	while (i + 1 < sizeof(type_names) / sizeof(type_names[0]) && type_names[i].letter != letter)
		i++;
	reply_text(r, "type");
	reply_text(r, type_names[i].name);
}

static void reply_arguments(struct reply *r, const char *at);

static void reply_argument(struct reply *r, const struct argument *a)
{
	bool flags = a->optional || a->repeated || a->token_repeated;

	reply_map(r, 2U + (a->key >= 0) + (a->token.at != NULL) + (a->since.at != NULL) +
			     (a->deprecated.at != NULL) + flags + (a->inner != NULL));
	reply_name(r, a);
	reply_type(r, a->type);
	if (a->key >= 0) {
		reply_text(r, "key_spec_index");
		reply_int(r, a->key);
	}
	reply_part_of(r, "token", &a->token);
	reply_part_of(r, "since", &a->since);
	reply_part_of(r, "deprecated_since", &a->deprecated);
	reply_argument_flags(r, a);
	if (a->inner)
		reply_arguments(r, a->inner);
}

static void reply_arguments(struct reply *r, const char *at)
{
	struct argument a;

	reply_text(r, "arguments");
	reply_array(r, count_arguments(at));
	while (!at_end(at)) {
		at = read_argument(at, &a);
		reply_argument(r, &a);
	}
}

/* --- commands --- */

void reply_docs(struct reply *r, const struct command *cmd)
{
	static const struct doc none = { "", NULL, NULL, "" };
	char name[COMMAND_NAME_MAX];
	const struct doc *doc = find_doc(command_full_name(cmd, name));
	size_t subs = 0;

	while (cmd->sub && cmd->sub[subs].name)
		subs++;
	if (!doc)
		doc = &none;
	reply_text(r, name);
	reply_map(r, 2U + (doc->since != NULL) + (doc->complexity != NULL) +
			     (doc->arguments[0] != '\0') + (subs != 0));
	reply_text(r, "summary");
	reply_text(r, cmd->summary);
	if (doc->since) {
		reply_text(r, "since");
		reply_text(r, doc->since);
	}
	reply_text(r, "group");
	reply_text(r, cmd->group);
	if (doc->complexity) {
		reply_text(r, "complexity");
		reply_text(r, doc->complexity);
	}
	if (doc->arguments[0])
		reply_arguments(r, doc->arguments);
	if (!subs)
		return;
	reply_text(r, "subcommands");
	reply_map(r, subs);
	for (size_t i = 0; i < subs; i++)
		reply_docs(r, &cmd->sub[i]);
}
