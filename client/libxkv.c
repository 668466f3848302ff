/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libxkv: builds requests, sends them, waits for the reply to each, and parses it.
 *
 * Anything may arrive on a UDP socket.  Therefore a reply is checked completely before any byte of
 * it is used, and datagrams that do not answer the current request are ignored.
 *
 * Only one request is outstanding at a time.  So the commands of a batch keep their order even if
 * the server answers only the first few of a request and the rest is sent again in a new one.  And
 * the session needs only one slot of the server's dedup cache: see XKV_F_ONCE in docs/protocol.md.
 * Before the first change, the server confirms the session for the address of this host.
 */
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bpf/proto.h"
#include "xkv.h"

#define DEFAULT_TIMEOUT_MS 1000
#define DEFAULT_RETRY_MS   50
#define DEFAULT_RETRIES	   8
#define PAYLOAD_MIN	   512	 /* room for a token, the longest key and some value */
#define COUNT_MAX	   255	 /* hdr.count is a byte */
#define DEDUP_SLOTS	   8	 /* of a session; the id of a change selects one, here always 0 */
#define DEDUP_REPEAT_MS	   50000 /* a change is not repeated later: the server knows it for 60 s */
#define LATE_LOOKS	   1000	 /* datagrams read after the deadline: more than a socket holds */
#define SESSIONS_TRIED	   8	 /* sessions that the server refuses before a call fails */
#define BUSY_MS		   1	 /* pause after a contended command; doubles */
#define CHUNK_BYTES	   (64U * 1024) /* values of replies are kept in chunks of this size */

/* The numbers of the API are those of the wire format. */
_Static_assert(XKV_CMD_PING == (int)XKV_OP_PING && XKV_CMD_GET == (int)XKV_OP_GET &&
		       XKV_CMD_SET == (int)XKV_OP_SET && XKV_CMD_DELETE == (int)XKV_OP_DELETE &&
		       XKV_CMD_EXPIRE == (int)XKV_OP_EXPIRE && XKV_CMD_INCR == (int)XKV_OP_INCR &&
		       XKV_CMD_APPEND == (int)XKV_OP_APPEND && XKV_CMD_TTL == (int)XKV_OP_TTL &&
		       XKV_CMD_TOUCH == (int)XKV_OP_TOUCH && XKV_CMD_CHECK == (int)XKV_OP_CHECK,
	       "commands are opcodes");
_Static_assert(
	XKV_E_MISS == -(int)XKV_MISS && XKV_E_NOT_STORED == -(int)XKV_NOT_STORED &&
		XKV_E_TOO_LARGE == -(int)XKV_TOO_LARGE && XKV_E_PAD == -(int)XKV_PAD &&
		XKV_E_NO_MEMORY == -(int)XKV_NO_MEMORY && XKV_E_BUSY == -(int)XKV_BUSY &&
		XKV_E_BAD_REQUEST == -(int)XKV_BAD_REQUEST &&
		XKV_E_BAD_OPCODE == -(int)XKV_BAD_OPCODE && XKV_E_BAD_KEY == -(int)XKV_BAD_KEY &&
		XKV_E_BAD_VERSION == -(int)XKV_BAD_VERSION && XKV_E_NOAUTH == -(int)XKV_NOAUTH &&
		XKV_E_NOT_NUMBER == -(int)XKV_NOT_NUMBER && XKV_E_OVERFLOW == -(int)XKV_OVERFLOW &&
		XKV_E_REPEATED == -(int)XKV_REPEATED && XKV_E_NO_SESSION == -(int)XKV_NO_SESSION &&
		XKV_E_READ_ONLY == -(int)XKV_READ_ONLY && XKV_E_ABORTED == -(int)XKV_ABORTED &&
		XKV_E_NO_LOG == -(int)XKV_NO_LOG,
	"errors are negative statuses");

/* A key of an xkv_scan().  All keys of a request share one operation. */
#define CMD_SCAN ((enum xkv_command)XKV_OP_SCAN)
/* Asks for a session; sent before the first change. */
#define CMD_SESSION ((enum xkv_command)XKV_OP_SESSION)

/* Values of the last call.  Chunks never move, so pointers into them stay valid. */
struct chunk {
	struct chunk *next;
	size_t used;
	unsigned char data[CHUNK_BYTES];
};

struct xkv {
	int fd;
	struct addrinfo *addrs; /* all addresses of the name */
	struct addrinfo *addr;	/* the one that fd is connected to */
	unsigned int addr_count;
	bool proven; /* the server at this address has answered: never use another one */

	unsigned int timeout_ms, retry_ms, retries, payload_max;
	uint64_t wait_us;      /* current value of SO_RCVTIMEO */
	uint64_t id;	       /* of the outstanding request */
	unsigned int pad;      /* payload that a returned value needs, from the last PAD status */
	unsigned int scan_pad; /* payload that a SCAN needs */
	bool dedup;	       /* changes are sent with XKV_F_ONCE, in this session */
	uint64_t session;
	bool session_settled; /* the server confirmed it, or does not confirm sessions */
	bool has_token;
	unsigned char token[XKV_TOKEN_BYTES];
	uint8_t database; /* of the keys of all requests */
	bool durable;	  /* they are sent with XKV_F_DURABLE */

	struct chunk *chunks; /* the newest first */
	__attribute__((aligned(8))) unsigned char out[XKV_PAYLOAD_MAX4];
	__attribute__((aligned(8))) unsigned char in[XKV_PAYLOAD_MAX4];
};

/* The outstanding request. */
struct request {
	struct xkv_cmd *cmds;
	unsigned int count;
	bool atomic;	 /* all commands are done, or none */
	unsigned int at; /* atomic: the command that was refused, if none was done */
	bool dedup;	 /* the server recognises its copies */
	size_t len;	 /* payload including padding, bytes */
	/*
	 * How often it was sent, and with the requests before it for the same commands, of which
	 * the server has refused one copy each: the others may still be executed.
	 */
	unsigned int copies, sent;
	int settled; /* number of commands that the reply answered, or its error */
	int failure; /* error to return if there is no answer */
};

/* ---- time ------------------------------------------------------------- */

static uint64_t clock_us(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static uint64_t now_us(void)
{
	return clock_us(CLOCK_MONOTONIC);
}

/*
 * How long to wait for an answer after repeat number `n`.  Randomised, so that clients that start
 * at the same time do not repeat at the same time.
 */
static uint64_t backoff_us(const struct xkv *h, unsigned int n)
{
	uint64_t wait = (uint64_t)h->retry_ms * 1000 << (n < 10 ? n : 10);
	uint64_t dice = ((h->id + n) * 0x9e3779b97f4a7c15ULL) >> 56;

	return n ? wait * 3 / 4 + wait * dice / 512 : wait;
}

/* ---- values of the last call ------------------------------------------ */

static void values_reset(struct xkv *h)
{
	while (h->chunks && h->chunks->next) {
		struct chunk *next = h->chunks->next;

		free(h->chunks);
		h->chunks = next;
	}
	if (h->chunks)
		h->chunks->used = 0;
}

/*
 * Allocates memory for all values of a reply before the request is sent, because the value that a
 * DELETE returns could not be requested again.  The length of the reply is enough: the result
 * before each value is larger than the zero byte that is added to it.
 */
static int values_reserve(struct xkv *h)
{
	struct chunk *c = h->chunks;

	if (c && sizeof(c->data) - c->used >= sizeof(h->in))
		return 0;
	c = malloc(sizeof(*c));
	if (!c)
		return XKV_E_OUT_OF_MEMORY;
	c->used = 0;
	c->next = h->chunks;
	h->chunks = c;
	return 0;
}

static const void *values_add(struct xkv *h, const void *value, size_t len)
{
	unsigned char *copy = h->chunks->data + h->chunks->used;

	memcpy(copy, value, len);
	copy[len] = 0;
	h->chunks->used += len + 1;
	return copy;
}

/* ---- building requests ------------------------------------------------ */

static bool changes(const struct xkv_cmd *cmd)
{
	switch (cmd->command) {
	case XKV_CMD_SET:
	case XKV_CMD_DELETE:
	case XKV_CMD_EXPIRE:
	case XKV_CMD_INCR:
	case XKV_CMD_APPEND:
		return true;
	default:
		return false;
	}
}

static bool any_changes(const struct xkv_cmd *cmds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (changes(&cmds[i]))
			return true;
	return false;
}

static size_t head_len(const struct xkv *h, bool dedup)
{
	return sizeof(struct xkv_hdr) + (h->has_token ? XKV_TOKEN_BYTES : 0) +
	       (dedup ? XKV_SESSION_BYTES : 0);
}

static size_t wire_value_len(const struct xkv_cmd *cmd)
{
	return cmd->command == XKV_CMD_INCR ? sizeof(cmd->amount) : cmd->value_len;
}

static size_t op_len(const struct xkv_cmd *cmd)
{
	return sizeof(struct xkv_op) + XKV_PADDED(cmd->key_len) + XKV_PADDED(wire_value_len(cmd));
}

/* May the result have a value of any length?  Requests with such results are padded. */
static bool returns_value(const struct xkv_cmd *cmd)
{
	return cmd->command == XKV_CMD_GET || cmd->command == CMD_SCAN || (cmd->flags & XKV_RETURN);
}

static bool returns_number(const struct xkv_cmd *cmd)
{
	return cmd->command == XKV_CMD_INCR || cmd->command == XKV_CMD_APPEND ||
	       cmd->command == CMD_SESSION;
}

static unsigned char *put_bytes(unsigned char *p, const void *bytes, size_t len)
{
	size_t padded = XKV_PADDED(len);

	if (len)
		memcpy(p, bytes, len);
	memset(p + len, 0, padded - len);
	return p + padded;
}

/* Writes a command, or `keys` commands of a scan. */
static unsigned char *put_op(unsigned char *p, const struct xkv_cmd *cmd, unsigned int keys)
{
	uint64_t amount = htobe64((uint64_t)cmd->amount);
	struct xkv_op op = {
		.opcode = (uint8_t)cmd->command,
		.flags = (uint8_t)cmd->flags,
		.key_len = (uint8_t)cmd->key_len,
		.keys = (uint8_t)keys,
		.value_len = htobe32((uint32_t)wire_value_len(cmd)),
		.ttl = htobe64(cmd->ttl_ms),
		.version = htobe64(cmd->version),
	};

	memcpy(p, &op, sizeof(op));
	p = put_bytes(p + sizeof(op), cmd->key, cmd->key_len);
	return put_bytes(p, cmd->command == XKV_CMD_INCR ? &amount : cmd->value,
			 wire_value_len(cmd));
}

/* Writes as many commands as fit.  *pad: the payload that their values need. */
static unsigned char *put_ops(const struct xkv *h, struct request *req, unsigned char *p, size_t n,
			      size_t *pad)
{
	const struct xkv_cmd *cmd = req->cmds;

	for (; req->count < n && req->count < COUNT_MAX; cmd++, req->count++) {
		if ((size_t)(p - h->out) + op_len(cmd) > h->payload_max)
			break;
		/* the dedup cache recognises requests with a single change, and transactions */
		if (req->count && h->dedup && !req->atomic &&
		    (changes(&req->cmds[0]) || changes(cmd)))
			break;
		if (returns_value(cmd))
			*pad += h->pad;
		p = put_op(p, cmd, 0);
	}
	return p;
}

/*
 * The next id.  Ids of changes are multiples of DEDUP_SLOTS, so that all of them select the same
 * slot of the server's dedup cache, which keeps the last change.
 */
static uint64_t next_id(struct xkv *h, bool dedup)
{
	h->id = dedup ? (h->id | (DEDUP_SLOTS - 1)) + 1 : h->id + 1;
	return h->id;
}

/*
 * Builds a request with as many commands as fit in h->out, with a new id; req->atomic and
 * req->sent are the caller's.
 */
static void build(struct xkv *h, struct request *req, struct xkv_cmd *cmds, size_t n, bool dedup)
{
	unsigned char *p = h->out + sizeof(struct xkv_hdr);
	size_t pad = 0, len;
	struct xkv_hdr hdr;
	bool scan = cmds[0].command == CMD_SCAN;

	*req = (struct request){
		.cmds = cmds, .atomic = req->atomic, .sent = req->sent, .failure = XKV_E_TIMEOUT
	};
	req->dedup =
		dedup && (any_changes(cmds, req->atomic ? n : 1) || cmds[0].command == CMD_SESSION);
	if (h->has_token)
		p = put_bytes(p, h->token, sizeof(h->token));
	if (req->dedup)
		p = put_bytes(p, &h->session, sizeof(h->session));
	if (scan) {
		req->count = (unsigned int)n;
		pad = h->scan_pad;
		p = put_op(p, cmds, req->count);
	} else {
		p = put_ops(h, req, p, n, &pad);
	}
	len = (size_t)(p - h->out);
	req->len = pad > h->payload_max ? h->payload_max : pad > len ? pad : len;
	memset(p, 0, req->len - len);
	hdr = (struct xkv_hdr){
		.magic = htobe16(XKV_MAGIC),
		.version = XKV_VERSION,
		.flags =
			(uint8_t)((h->has_token ? XKV_F_TOKEN : 0) | (req->dedup ? XKV_F_ONCE : 0) |
				  (req->atomic ? XKV_F_ATOMIC : 0) |
				  (h->durable && cmds[0].command != CMD_SESSION ? XKV_F_DURABLE
										: 0)),
		.count = scan ? 1 : (uint8_t)req->count,
		.db = h->database,
		.length = htobe16((uint16_t)len),
		.id = htobe64(next_id(h, req->dedup)),
	};
	memcpy(h->out, &hdr, sizeof(hdr));
}

/* ---- parsing replies -------------------------------------------------- */

/* A position in a reply. */
struct cursor {
	const unsigned char *pos, *end;
};

/* The next result and its value (NULL if it has none).  False if it is truncated or invalid. */
static bool next_result(struct cursor *c, struct xkv_result *res, const unsigned char **value)
{
	size_t left = (size_t)(c->end - c->pos), len;

	if (left < sizeof(*res))
		return false;
	memcpy(res, c->pos, sizeof(*res));
	c->pos += sizeof(*res);
	left -= sizeof(*res);
	*value = NULL;
	len = be32toh(res->value_len);
	if (!(res->flags & XKV_HAS_VALUE))
		return !len || res->status == XKV_TOO_LARGE || res->status == XKV_PAD;
	if (res->status != XKV_OK && res->status != XKV_NOT_STORED)
		return false;
	/* compare `len` first: rounding it up might wrap around */
	if (len > left || XKV_PADDED(len) > left)
		return false;
	*value = c->pos;
	c->pos += XKV_PADDED(len);
	return true;
}

/* Does the result have a value if, and only if, the command returns one? */
static bool value_sane(const struct xkv_cmd *cmd, const struct xkv_result *res, const void *value)
{
	if (returns_number(cmd))
		return res->status == XKV_OK ? value && be32toh(res->value_len) == sizeof(int64_t)
					     : !value;
	if (!returns_value(cmd))
		return !value;
	return value || res->status != XKV_OK || (cmd->flags & XKV_RETURN);
}

/* Are the results complete, as many as in the header, and valid for the commands? */
static bool results_sane(const struct request *req, struct cursor c, unsigned int count)
{
	const unsigned char *value;
	struct xkv_result res;

	for (unsigned int i = 0; i < count; i++) {
		if (!next_result(&c, &res, &value) || res.index ||
		    res.opcode != (uint8_t)req->cmds[i].command)
			return false;
		if (!value_sane(&req->cmds[i], &res, value))
			return false;
		if (res.status == XKV_PAD && (i + 1 != count || !returns_value(&req->cmds[i])))
			return false;
		if (req->atomic && res.status != XKV_OK && res.status != XKV_MISS)
			return false;
	}
	return c.pos == c.end;
}

/* A status that this version of the library does not know still is an answer. */
static int status_error(unsigned int status)
{
	return status <= XKV_NO_LOG ? -(int)status : XKV_E_PROTOCOL;
}

static void take_result(struct xkv *h, struct xkv_cmd *cmd, const struct xkv_result *res,
			const unsigned char *value)
{
	struct xkv_reply *reply = &cmd->reply;
	uint64_t number;

	reply->status = status_error(res->status);
	reply->ttl_ms = be64toh(res->ttl);
	reply->version = be64toh(res->version);
	if (value && returns_number(cmd)) {
		memcpy(&number, value, sizeof(number));
		reply->number = (int64_t)be64toh(number);
		return;
	}
	reply->value_len = be32toh(res->value_len);
	reply->value = value ? values_add(h, value, reply->value_len) : NULL;
}

/*
 * Handles the status PAD: the next request is padded.  The server must ask for more than it got,
 * else this might never end, and for no more than a datagram holds.
 */
static int take_pad(struct xkv *h, const struct request *req, uint32_t want)
{
	unsigned int *pad = req->cmds[0].command == CMD_SCAN ? &h->scan_pad : &h->pad;
	unsigned int values = 1;

	if (want <= req->len)
		return XKV_E_PROTOCOL;
	if (want > h->payload_max)
		return XKV_E_PAD;
	if (req->atomic) { /* it is for all values */
		values = 0;
		for (unsigned int i = 0; i < req->count; i++)
			values += returns_value(&req->cmds[i]);
		if (!values)
			return XKV_E_PROTOCOL;
	}
	want = (want + values - 1) / values;
	if (want > *pad)
		*pad = want;
	return 0;
}

/* Stores the checked results in the commands.  Returns how many were answered, or an error. */
static int take_results(struct xkv *h, const struct request *req, struct cursor c,
			unsigned int count)
{
	const unsigned char *value;
	struct xkv_result res;

	for (unsigned int i = 0; i < count; i++) {
		int err;

		if (!next_result(&c, &res, &value))
			return XKV_E_PROTOCOL;
		if (res.status == XKV_PAD) {
			err = take_pad(h, req, be32toh(res.value_len));
			/*
			 * the commands before it are done; the error, if any, will be the first
			 * result of the next reply
			 */
			return err && !i ? err : (int)i;
		}
		take_result(h, &req->cmds[i], &res, value);
	}
	return (int)count;
}

/*
 * Handles a reply without results.  REPEATED answers the only command; with any other status the
 * server has executed none.  Servers that have databases know all flags of the header, and older
 * ones require database 0: of another database, the header is refused for its number.
 */
static int refusal(const struct xkv *h, const struct request *req, unsigned int status)
{
	if (status == XKV_BAD_REQUEST && h->database)
		return XKV_E_NO_DATABASE;
	if (status != XKV_REPEATED || !req->dedup || req->atomic)
		return status_error(status);
	req->cmds[0].reply.status = XKV_E_REPEATED;
	return 1;
}

/*
 * The one result of a transaction of which nothing was done: XKV_E_ABORTED, or 0 if it has to be
 * sent again with more padding.  False if it is invalid.
 */
static bool take_aborted(struct xkv *h, struct request *req, struct cursor c)
{
	const unsigned char *value;
	struct xkv_result res;

	if (!req->atomic || !next_result(&c, &res, &value) || value || c.pos != c.end ||
	    res.status == XKV_OK || res.index >= req->count ||
	    res.opcode != (uint8_t)req->cmds[res.index].command)
		return false;
	req->at = res.index;
	req->settled = XKV_E_ABORTED;
	if (res.status == XKV_PAD)
		req->settled = take_pad(h, req, be32toh(res.value_len));
	else
		take_result(h, &req->cmds[res.index], &res, NULL);
	return true;
}

enum verdict { FOREIGN, BROKEN, OURS };

/*
 * Parses a datagram.  OURS: it is the reply to the outstanding request, and req->settled is set.
 * BROKEN: it has the request's id, but is malformed.
 */
static enum verdict judge(struct xkv *h, struct request *req, size_t len)
{
	struct xkv_hdr hdr;
	struct cursor c;
	size_t length;

	if (len < sizeof(hdr) || len > sizeof(h->in))
		return FOREIGN;
	memcpy(&hdr, h->in, sizeof(hdr));
	if (be16toh(hdr.magic) != XKV_MAGIC || hdr.version != XKV_VERSION ||
	    !(hdr.flags & XKV_F_REPLY) || be64toh(hdr.id) != h->id)
		return FOREIGN;
	length = be16toh(hdr.length);
	if (hdr.flags != XKV_F_REPLY || length < sizeof(hdr) || length > len || length % 8)
		return BROKEN;
	c = (struct cursor){ h->in + sizeof(hdr), h->in + length };
	if (hdr.status == XKV_ABORTED)
		return hdr.count == 1 && take_aborted(h, req, c) ? OURS : BROKEN;
	if (hdr.status != XKV_OK) {
		req->settled = refusal(h, req, hdr.status);
		return hdr.count || length != sizeof(hdr) ? BROKEN : OURS;
	}
	if (!hdr.count || hdr.count > req->count || !results_sane(req, c, hdr.count) ||
	    (req->atomic && hdr.count != req->count))
		return BROKEN;
	/* the reply to a SCAN lacks keys although the datagram has room: pad the next more */
	if (req->cmds[0].command == CMD_SCAN && hdr.count < req->count && len < h->payload_max / 2)
		h->scan_pad = h->payload_max;
	req->settled = take_results(h, req, c, hdr.count);
	return OURS;
}

/* ---- the socket ------------------------------------------------------- */

static bool set_wait(struct xkv *h, uint64_t us)
{
	struct timeval tv;

	us = us < 1000 ? 1000 : us; /* 0 would mean no timeout */
	if (us == h->wait_us)
		return true;
	tv = (struct timeval){ .tv_sec = (time_t)(us / 1000000), .tv_usec = (int)(us % 1000000) };
	if (setsockopt(h->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)))
		return false;
	h->wait_us = us;
	return true;
}

static int connect_to(struct xkv *h, struct addrinfo *ai)
{
	int fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return XKV_E_SYSTEM;
	if (connect(fd, ai->ai_addr, ai->ai_addrlen)) {
		int saved = errno;

		close(fd);
		errno = saved;
		return XKV_E_UNREACHABLE;
	}
	if (h->fd >= 0)
		close(h->fd);
	h->fd = fd;
	h->addr = ai;
	h->wait_us = 0;
	return 0;
}

/* Connects to the next address of the name that allows it; after the last comes the first. */
static int next_address(struct xkv *h)
{
	struct addrinfo *ai = h->addr;
	int err = XKV_E_UNREACHABLE;

	for (unsigned int i = 0; err && i < h->addr_count; i++) {
		ai = ai && ai->ai_next ? ai->ai_next : h->addrs;
		err = connect_to(h, ai);
	}
	return err;
}

/* The meaning of an errno of send() or recv(): 0 = the datagram was lost, continue; or an error. */
static int soft_failure(int error)
{
	switch (error) {
	case ECONNREFUSED:
		return XKV_E_REFUSED;
	case EHOSTUNREACH:
	case ENETUNREACH:
	case EHOSTDOWN:
	case ENETDOWN:
		return XKV_E_UNREACHABLE;
	case EAGAIN: /* recv(): nothing arrived; send(): no buffer, the same as lost */
	case ENOBUFS:
	case EINTR:
		return 0;
	default:
		return XKV_E_SYSTEM;
	}
}

/* Sends the request.  0 (even if the datagram was lost), or XKV_E_SYSTEM. */
static int transmit(struct xkv *h, struct request *req)
{
	int err;

	req->copies++;
	req->sent++;
	/* twice, because the first call may fail with the ICMP error of an earlier datagram */
	for (int i = 0; i < 2; i++) {
		if (send(h->fd, h->out, req->len, 0) >= 0)
			return 0;
		err = soft_failure(errno);
		if (err == XKV_E_SYSTEM)
			return err;
		if (err)
			req->failure = err;
	}
	return 0;
}

/*
 * Waits for the reply until `until`.  1 and req->settled, 0 if there was none, or an error;
 * XKV_E_REFUSED and XKV_E_UNREACHABLE are returned at once.  Datagrams that are in the socket when
 * the time is up are read, too: this process may not have run in time.
 */
static int await(struct xkv *h, struct request *req, uint64_t until)
{
	for (unsigned int looks = 0; looks < LATE_LOOKS;) {
		uint64_t now = now_us(), left = until > now ? until - now : 0;
		enum verdict verdict;
		ssize_t len;

		/*
		 * The current timeout of the socket is mostly near enough, which saves a system
		 * call.  A new socket has none, and would wait forever.
		 */
		if (left && (!h->wait_us || h->wait_us > left + 1000 || h->wait_us + 1000 < left) &&
		    !set_wait(h, left))
			return XKV_E_SYSTEM;
		looks += !left;
		len = recv(h->fd, h->in, sizeof(h->in), MSG_TRUNC | (left ? 0 : MSG_DONTWAIT));
		if (len < 0) {
			int err = soft_failure(errno);

			if (err || !left)
				return err;
			continue;
		}
		verdict = judge(h, req, (size_t)len);
		if (verdict == BROKEN)
			req->failure = XKV_E_PROTOCOL;
		if (verdict != OURS)
			continue;
		h->proven = true;
		return req->settled < 0 ? req->settled : 1;
	}
	return 0;
}

/* After a refusal: connects to the next address.  True if there is one that was not tried yet. */
static bool turn_to_next(struct xkv *h, unsigned int *turns)
{
	if (h->proven || ++*turns >= h->addr_count)
		return false;
	return !next_address(h);
}

static void pause_until(uint64_t until)
{
	struct timespec ts = { (time_t)(until / 1000000), (long)(until % 1000000) * 1000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

/*
 * For how long copies may be sent of a request that was first sent at `first`, us of
 * CLOCK_BOOTTIME: this clock goes on while this machine is suspended, as the server's does.  A copy
 * that arrives after the server has forgotten the change would be executed again.
 */
static uint64_t copies_left_us(const struct request *req, uint64_t first)
{
	uint64_t limit = DEDUP_REPEAT_MS * 1000ULL, past;

	if (!req->dedup)
		return UINT64_MAX;
	past = clock_us(CLOCK_BOOTTIME) - first;
	return past < limit ? limit - past : 0;
}

/*
 * Sends the request until it is answered, with growing pauses.  1 and req->settled, or an error.
 */
static int exchange(struct xkv *h, struct request *req, uint64_t deadline)
{
	uint64_t now = now_us(), first = clock_us(CLOCK_BOOTTIME);
	unsigned int turns = 0;

	for (unsigned int n = 0; now < deadline; now = now_us()) {
		uint64_t wait = backoff_us(h, n), until = now + wait;
		uint64_t copies_left = copies_left_us(req, first);
		int rc = 0;

		if (wait > copies_left || n >= h->retries)
			until = deadline;
		/* none is left if this process was stopped meanwhile, or the machine suspended */
		if (copies_left)
			rc = transmit(h, req);
		if (!rc)
			rc = await(h, req, until);
		if (rc && rc != XKV_E_REFUSED && rc != XKV_E_UNREACHABLE)
			return rc;
		if (rc) {
			req->failure = rc;
			if (turn_to_next(h, &turns))
				continue;
			turns = 0;
			/* no server now, but one may be about to restart: try again later */
			if (n < h->retries)
				pause_until(until);
		}
		if (n++ >= h->retries)
			break;
	}
	return req->failure;
}

/* ---- sessions of the dedup cache -------------------------------------- */

/* Makes a random session, which nobody can guess.  0 means no session. */
static int new_session(struct xkv *h)
{
	do {
		if (getrandom(&h->session, sizeof(h->session), 0) != (ssize_t)sizeof(h->session))
			return XKV_E_SYSTEM;
	} while (!h->session);
	h->session_settled = false;
	return 0;
}

/*
 * Asks the server to confirm the session for our address, so that clients with forged addresses
 * cannot take its place in the dedup cache.  An older server accepts the random session as it is.
 */
static int prove(struct xkv *h, uint64_t deadline)
{
	struct xkv_cmd cmd = { .command = CMD_SESSION };
	struct request req = { .atomic = false };
	int rc;

	build(h, &req, &cmd, 1, true);
	rc = exchange(h, &req, deadline);
	if (rc == XKV_E_BAD_REQUEST)
		h->dedup = false; /* the server is too old to have a dedup cache */
	else if (rc < 0 && rc != XKV_E_NO_SESSION)
		return rc;
	else if (rc > 0 && !cmd.reply.status && cmd.reply.number)
		h->session = htobe64((uint64_t)cmd.reply.number);
	h->session_settled = true;
	return 0;
}

/* Was the only command of the request refused as contended?  Then nothing was changed. */
static bool was_busy(const struct request *req, int rc)
{
	if (rc == XKV_E_ABORTED)
		return req->cmds[req->at].reply.status == XKV_E_BUSY;
	return rc == 1 && req->count == 1 && req->settled == 1 &&
	       req->cmds[0].reply.status == XKV_E_BUSY;
}

/*
 * The dedup cache has no room for the session.  True if the change may be sent again: in another
 * session, which has another place in the cache, if the request was sent only once (a late copy of
 * it might still find room); or without a session if XKV_CAS prevents a second execution.  Not a
 * transaction: its second copy would be told that nothing was done.
 */
static bool without_room(struct xkv *h, const struct request *req, unsigned int *tried, bool *dedup)
{
	if (req->copies == 1 && ++*tried < SESSIONS_TRIED)
		return !new_session(h);
	*dedup = false;
	return !req->atomic && (req->cmds[0].flags & XKV_CAS);
}

/*
 * Sends a request with the first of the commands, or atomically with all of them (req->atomic),
 * until it is answered.  1, or an error.
 */
static int deliver(struct xkv *h, struct request *req, struct xkv_cmd *cmds, size_t n)
{
	uint64_t deadline = now_us() + (uint64_t)h->timeout_ms * 1000, pause = BUSY_MS * 1000;
	unsigned int sessions = 0;
	bool dedup = h->dedup;
	int rc;

	for (;;) {
		if (dedup && any_changes(cmds, req->atomic ? n : 1) && !h->session_settled) {
			*req = (struct request){
				.cmds = cmds, .count = 1, .atomic = req->atomic, .sent = req->sent
			};
			rc = prove(h, deadline);
			if (rc)
				return rc;
			dedup = h->dedup;
		}
		build(h, req, cmds, n, dedup);
		rc = exchange(h, req, deadline);
		if (was_busy(req, rc) && now_us() + pause < deadline) {
			pause_until(now_us() + pause);
			pause *= 2;
		} else if (rc == XKV_E_BAD_REQUEST && req->dedup && !req->atomic) {
			h->dedup = dedup = false; /* the server is too old to have a dedup cache */
		} else if (rc != XKV_E_NO_SESSION || !req->dedup ||
			   !without_room(h, req, &sessions, &dedup)) {
			return rc;
		}
		req->sent--; /* of this copy it is known that it was not executed */
	}
}

/* ---- calls ------------------------------------------------------------ */

static unsigned int known_flags(enum xkv_command command)
{
	switch (command) {
	case XKV_CMD_SET:
		return XKV_NX | XKV_XX | XKV_KEEPTTL | XKV_CAS | XKV_RETURN | XKV_ABSTTL;
	case XKV_CMD_DELETE:
		return XKV_CAS | XKV_RETURN;
	case XKV_CMD_EXPIRE:
		return XKV_CAS | XKV_ABSTTL;
	case XKV_CMD_INCR:
	case XKV_CMD_APPEND:
		return XKV_XX | XKV_CAS;
	default:
		return 0;
	}
}

/* Does the command have a member or flag set that it does not use? */
static bool misfits(const struct xkv_cmd *cmd)
{
	bool set = cmd->command == XKV_CMD_SET, check = cmd->command == XKV_CMD_CHECK;

	if ((cmd->command < XKV_CMD_PING || cmd->command > XKV_CMD_TOUCH) && !check)
		return true;
	if ((cmd->flags & ~known_flags(cmd->command)) ||
	    (cmd->version && !(cmd->flags & XKV_CAS) && !check))
		return true;
	if (cmd->value_len && !set && cmd->command != XKV_CMD_APPEND)
		return true;
	if (cmd->ttl_ms && !set && cmd->command != XKV_CMD_EXPIRE)
		return true;
	return (cmd->amount && cmd->command != XKV_CMD_INCR) ||
	       (cmd->key_len && cmd->command == XKV_CMD_PING);
}

/* Checks what the server would check, too: saves a round trip and gives a clearer error. */
static int check(const struct xkv *h, struct xkv_cmd *cmd)
{
	if (misfits(cmd))
		return XKV_E_INVALID;
	if (cmd->command != XKV_CMD_PING && (!cmd->key_len || cmd->key_len > XKV_KEY_MAX))
		return XKV_E_BAD_KEY;
	if ((cmd->key_len && !cmd->key) || (cmd->value_len && !cmd->value))
		return XKV_E_INVALID;
	if ((cmd->flags & XKV_NX) && (cmd->flags & (XKV_XX | XKV_CAS)))
		return XKV_E_INVALID;
	if ((cmd->flags & XKV_KEEPTTL) && cmd->ttl_ms)
		return XKV_E_INVALID;
	if (cmd->ttl_ms > XKV_TTL_MAX)
		return XKV_E_INVALID;
	if (cmd->value_len > xkv_value_max(h, cmd->key_len)) {
		cmd->reply.value_len = cmd->value_len;
		return XKV_E_TOO_LARGE;
	}
	return 0;
}

static int check_all(const struct xkv *h, struct xkv_cmd *cmds, size_t n, bool atomic)
{
	int err = 0, first = 0;

	for (size_t i = 0; i < n; i++) {
		cmds[i].reply = (struct xkv_reply){ 0 };
		err = check(h, &cmds[i]);
		if (!err && cmds[i].command == (atomic ? XKV_CMD_PING : XKV_CMD_CHECK))
			err = XKV_E_INVALID;
		cmds[i].reply.status = err;
		if (err && !first)
			first = err;
	}
	for (size_t i = 0; first && i < n; i++)
		if (!cmds[i].reply.status)
			cmds[i].reply.status = XKV_E_INVALID;
	return first;
}

/* Runs checked commands.  Returns how many were answered, and *err if not all were. */
static size_t run_all(struct xkv *h, struct xkv_cmd *cmds, size_t n, int *err)
{
	struct request req = { .atomic = false };
	size_t done = 0;

	values_reset(h);
	for (*err = 0; done < n; done += (size_t)req.settled) {
		*err = values_reserve(h);
		if (*err)
			break;
		*err = deliver(h, &req, cmds + done, n - done);
		for (unsigned int i = 0; i < req.count; i++)
			req.cmds[i].reply.sent = req.sent;
		if (*err < 0)
			break;
		/* unanswered commands are sent again, with padding if the server asked for it */
		*err = 0;
		req.sent = (unsigned int)req.settled < req.count ? req.sent - 1 : 0;
	}
	for (size_t i = done; i < n; i++)
		cmds[i].reply.status = *err;
	return done;
}

int xkv_batch(struct xkv *h, struct xkv_cmd *cmds, size_t n)
{
	int err = check_all(h, cmds, n, false);

	if (err)
		values_reset(h);
	else
		run_all(h, cmds, n, &err);
	return err;
}

/* Do all commands fit one datagram? */
static bool fit_together(const struct xkv *h, const struct xkv_cmd *cmds, size_t n)
{
	size_t len = head_len(h, h->dedup);

	for (size_t i = 0; i < n; i++)
		len += op_len(&cmds[i]);
	return len <= h->payload_max;
}

/* Runs checked commands as one transaction. */
static int run_atomic(struct xkv *h, struct xkv_cmd *cmds, size_t n, size_t *failed)
{
	struct request req = { .atomic = true };
	int err;

	for (;;) {
		err = values_reserve(h);
		if (!err)
			err = deliver(h, &req, cmds, n);
		if (err != 1 || req.settled)
			break;
		req.sent--; /* the server has asked for padding */
	}
	for (size_t i = 0; i < n; i++) {
		cmds[i].reply.sent = req.sent;
		if (err < 0 && (err != XKV_E_ABORTED || i != req.at))
			cmds[i].reply.status = err;
	}
	if (err == XKV_E_ABORTED && failed)
		*failed = req.at;
	return err < 0 ? err : 0;
}

/* May checked commands be one transaction?  Else an error, which all of them have as status. */
static int check_together(const struct xkv *h, struct xkv_cmd *cmds, size_t n)
{
	int err = 0;

	if (!n || n > XKV_ATOMIC_MAX)
		err = XKV_E_INVALID;
	else if (!fit_together(h, cmds, n))
		err = XKV_E_TOO_LARGE;
	for (size_t i = 0; err && i < n; i++)
		cmds[i].reply.status = err;
	return err;
}

int xkv_atomic(struct xkv *h, struct xkv_cmd *cmds, size_t n, size_t *failed)
{
	int err = check_all(h, cmds, n, true);

	values_reset(h);
	if (!err)
		err = check_together(h, cmds, n);
	return err ? err : run_atomic(h, cmds, n, failed);
}

/* Runs a single command and returns its status. */
static int run(struct xkv *h, struct xkv_cmd cmd, struct xkv_reply *out)
{
	int err = xkv_batch(h, &cmd, 1);

	if (out)
		*out = cmd.reply;
	return err ? err : cmd.reply.status;
}

/* Makes a command with the arguments that all calls have. */
#define ON_KEY(cmd) .command = (cmd), .key = key, .key_len = key_len

int xkv_ping(struct xkv *h)
{
	return run(h, (struct xkv_cmd){ .command = XKV_CMD_PING }, NULL);
}

int xkv_get(struct xkv *h, const void *key, size_t key_len, struct xkv_reply *out)
{
	return run(h, (struct xkv_cmd){ ON_KEY(XKV_CMD_GET) }, out);
}

int xkv_ttl(struct xkv *h, const void *key, size_t key_len, struct xkv_reply *out)
{
	return run(h, (struct xkv_cmd){ ON_KEY(XKV_CMD_TTL) }, out);
}

int xkv_touch(struct xkv *h, const void *key, size_t key_len, struct xkv_reply *out)
{
	return run(h, (struct xkv_cmd){ ON_KEY(XKV_CMD_TOUCH) }, out);
}

/* The common part of all calls that send a SET. */
static int run_set(struct xkv *h, const void *key, size_t key_len, const void *value,
		   size_t value_len, uint64_t ttl_ms, uint64_t version, unsigned int flags,
		   struct xkv_reply *out)
{
	return run(h,
		   (struct xkv_cmd){ ON_KEY(XKV_CMD_SET), .value = value, .value_len = value_len,
				     .ttl_ms = ttl_ms, .version = version, .flags = flags },
		   out);
}

int xkv_set(struct xkv *h, const void *key, size_t key_len, const void *value, size_t value_len,
	    uint64_t ttl_ms, unsigned int flags, struct xkv_reply *out)
{
	return run_set(h, key, key_len, value, value_len, ttl_ms, 0, flags, out);
}

int xkv_cas(struct xkv *h, const void *key, size_t key_len, const void *value, size_t value_len,
	    uint64_t ttl_ms, uint64_t version, unsigned int flags, struct xkv_reply *out)
{
	return run_set(h, key, key_len, value, value_len, ttl_ms, version, flags | XKV_CAS, out);
}

int xkv_add(struct xkv *h, const void *key, size_t key_len, const void *value, size_t value_len,
	    uint64_t ttl_ms, struct xkv_reply *out)
{
	return run_set(h, key, key_len, value, value_len, ttl_ms, 0, XKV_NX, out);
}

int xkv_replace(struct xkv *h, const void *key, size_t key_len, const void *value, size_t value_len,
		uint64_t ttl_ms, struct xkv_reply *out)
{
	return run_set(h, key, key_len, value, value_len, ttl_ms, 0, XKV_XX, out);
}

int xkv_incr(struct xkv *h, const void *key, size_t key_len, int64_t amount, unsigned int flags,
	     struct xkv_reply *out)
{
	return run(h, (struct xkv_cmd){ ON_KEY(XKV_CMD_INCR), .amount = amount, .flags = flags },
		   out);
}

int xkv_append(struct xkv *h, const void *key, size_t key_len, const void *value, size_t value_len,
	       unsigned int flags, struct xkv_reply *out)
{
	return run(h,
		   (struct xkv_cmd){ ON_KEY(XKV_CMD_APPEND), .value = value, .value_len = value_len,
				     .flags = flags },
		   out);
}

int xkv_delete(struct xkv *h, const void *key, size_t key_len, unsigned int flags,
	       struct xkv_reply *out)
{
	return run(h, (struct xkv_cmd){ ON_KEY(XKV_CMD_DELETE), .flags = flags }, out);
}

int xkv_getdel(struct xkv *h, const void *key, size_t key_len, struct xkv_reply *out)
{
	return xkv_delete(h, key, key_len, XKV_RETURN, out);
}

int xkv_expire(struct xkv *h, const void *key, size_t key_len, uint64_t ttl_ms, unsigned int flags)
{
	return run(h, (struct xkv_cmd){ ON_KEY(XKV_CMD_EXPIRE), .ttl_ms = ttl_ms, .flags = flags },
		   NULL);
}

int xkv_persist(struct xkv *h, const void *key, size_t key_len)
{
	return xkv_expire(h, key, key_len, 0, 0);
}

/* ---- scans ------------------------------------------------------------ */

/* The keys that one SCAN operation asks for. */
struct scan {
	struct xkv_cmd cmd[XKV_SCAN_MAX];
	char key[XKV_SCAN_MAX][XKV_KEY_MAX + 1];
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Increments the number at the end of a key.  False if all of its digits were 9. */
static bool next_key(char *key, size_t len)
{
	while (len && is_digit(key[len - 1])) {
		if (key[--len]++ != '9')
			return true;
		key[len] = '0';
	}
	return false;
}

/* Makes the commands for the key in key[0] and those after it.  Returns their number. */
static size_t scan_fill(struct scan *s, size_t key_len, size_t n)
{
	size_t i = 0;

	do {
		s->cmd[i] = (struct xkv_cmd){ .command = CMD_SCAN,
					      .key = s->key[i],
					      .key_len = key_len };
		if (++i == XKV_SCAN_MAX || i == n)
			return i;
		memcpy(s->key[i], s->key[i - 1], key_len + 1);
	} while (next_key(s->key[i], key_len));
	return i;
}

/* Reads at most `n` keys from key[0] on. */
static int scan_run(struct xkv *h, struct scan *s, size_t key_len, size_t n, xkv_scan_fn *fn,
		    void *arg)
{
	size_t count, done;
	bool more;
	int err;

	do {
		count = scan_fill(s, key_len, n);
		done = run_all(h, s->cmd, count, &err);
		for (size_t i = 0; i < done; i++) {
			int rc = fn(arg, s->key[i], key_len, &s->cmd[i].reply);

			if (rc)
				return rc;
		}
		n -= count;
		memcpy(s->key[0], s->key[count - 1], key_len);
		more = next_key(s->key[0], key_len);
	} while (!err && n && more);
	return err;
}

int xkv_scan(struct xkv *h, const void *key, size_t key_len, size_t n, xkv_scan_fn *fn, void *arg)
{
	struct scan *s;
	int err;

	if (!key_len || key_len > XKV_KEY_MAX)
		return XKV_E_BAD_KEY;
	if (!key || !fn || !is_digit(((const char *)key)[key_len - 1]))
		return XKV_E_INVALID;
	if (!n)
		return 0;
	s = calloc(1, sizeof(*s));
	if (!s)
		return XKV_E_OUT_OF_MEMORY;
	memcpy(s->key[0], key, key_len);
	err = scan_run(h, s, key_len, n, fn, arg);
	free(s);
	return err;
}

size_t xkv_value_max(const struct xkv *h, size_t key_len)
{
	size_t used = head_len(h, h->dedup) + sizeof(struct xkv_op) + XKV_PADDED(key_len);

	if (!key_len || key_len > XKV_KEY_MAX || used > h->payload_max)
		return 0;
	return (h->payload_max - used) & ~(size_t)7;
}

void xkv_set_token(struct xkv *h, const unsigned char *token)
{
	h->has_token = token != NULL;
	if (token)
		memcpy(h->token, token, sizeof(h->token));
}

void xkv_set_durable(struct xkv *h, int durable)
{
	h->durable = durable;
}

int xkv_select(struct xkv *h, unsigned int database)
{
	if (database > XKV_DATABASE_MAX)
		return XKV_E_INVALID;
	h->database = (uint8_t)database;
	return 0;
}

/* ---- open and close --------------------------------------------------- */

static int resolve(struct xkv *h, const char *host, unsigned int port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV };
	char service[6];
	int rc;

	snprintf(service, sizeof(service), "%u", port);
	rc = getaddrinfo(host, service, &hints, &h->addrs);
	if (rc == EAI_MEMORY)
		return XKV_E_OUT_OF_MEMORY;
	if (rc == EAI_SYSTEM)
		return XKV_E_SYSTEM;
	if (rc)
		return XKV_E_HOST;
	/* the same request may be sent to each of the addresses, so the smallest limit holds */
	for (struct addrinfo *ai = h->addrs; ai; ai = ai->ai_next) {
		h->addr_count++;
		if (ai->ai_family == AF_INET6)
			h->payload_max = XKV_PAYLOAD_MAX6;
	}
	return 0;
}

/* Sets the options of the handle: those of the caller, or the defaults. */
static int configure(struct xkv *h, const struct xkv_options *opts)
{
	static const struct xkv_options none;

	if (!opts)
		opts = &none;
	if (opts->retries < -1 || opts->once < -1 || opts->once > 0 ||
	    (opts->payload_max && opts->payload_max < PAYLOAD_MIN))
		return XKV_E_INVALID;
	h->timeout_ms = opts->timeout_ms ? opts->timeout_ms : DEFAULT_TIMEOUT_MS;
	h->retry_ms = opts->retry_ms ? opts->retry_ms : DEFAULT_RETRY_MS;
	h->retries = DEFAULT_RETRIES;
	if (opts->retries)
		h->retries = opts->retries > 0 ? (unsigned int)opts->retries : 0;
	if (opts->payload_max && opts->payload_max < h->payload_max)
		h->payload_max = opts->payload_max;
	h->dedup = !opts->once;
	xkv_set_token(h, opts->token);
	return xkv_select(h, opts->database);
}

static int set_up(struct xkv *h, const char *host, unsigned int port,
		  const struct xkv_options *opts)
{
	int err;

	h->fd = -1;
	h->payload_max = XKV_PAYLOAD_MAX4;
	if (!host || !port || port > 65535)
		return XKV_E_INVALID;
	err = resolve(h, host, port);
	if (!err)
		err = configure(h, opts);
	if (!err)
		err = next_address(h);
	/* a random first id, so that only hosts on the path can forge replies */
	if (!err && getrandom(&h->id, sizeof(h->id), 0) != (ssize_t)sizeof(h->id))
		err = XKV_E_SYSTEM;
	if (!err)
		err = new_session(h);
	return err;
}

struct xkv *xkv_open(const char *host, unsigned int port, const struct xkv_options *opts,
		     int *error)
{
	struct xkv *h = calloc(1, sizeof(*h));
	int err = h ? set_up(h, host, port, opts) : XKV_E_OUT_OF_MEMORY;

	if (error)
		*error = err;
	if (!err)
		return h;
	xkv_close(h);
	return NULL;
}

void xkv_close(struct xkv *h)
{
	int saved = errno;

	if (!h)
		return;
	values_reset(h);
	free(h->chunks);
	if (h->addrs)
		freeaddrinfo(h->addrs);
	if (h->fd >= 0)
		close(h->fd);
	free(h);
	errno = saved;
}

/* ---- errors ----------------------------------------------------------- */

const char *xkv_strerror(int error)
{
	static const struct {
		int code;
		const char *text;
	} texts[] = {
		{ 0, "success" },
		{ XKV_E_MISS, "no such key" },
		{ XKV_E_NOT_STORED, "not stored: the condition (NX, XX or version) does not hold" },
		{ XKV_E_TOO_LARGE, "the value does not fit a datagram: use the TCP port for it" },
		{ XKV_E_PAD, "the server wants more padding than a datagram holds: add this client "
			     "to the server's allow list" },
		{ XKV_E_NO_MEMORY,
		  "the server's store is full: raise its maxmemory or max-keys, or delete keys" },
		{ XKV_E_BUSY, "nothing was changed, as the entry is contended, or the server's "
			      "upstream is not there: try again" },
		{ XKV_E_BAD_REQUEST, "the server found the request malformed: do the versions of "
				     "client and server fit?" },
		{ XKV_E_BAD_OPCODE, "the server does not know this command: upgrade it" },
		{ XKV_E_BAD_KEY, "a key has 1 to 250 bytes" },
		{ XKV_E_BAD_VERSION, "the server speaks another version of the protocol: upgrade "
				     "client or server" },
		{ XKV_E_NOAUTH, "the server wants another client token, or has closed UDP "
				"(requirepass or users, and no udp-token)" },
		{ XKV_E_NOT_NUMBER, "the value is not an integer or out of range" },
		{ XKV_E_OVERFLOW, "the sum would be out of range: 64 bits, signed" },
		{ XKV_E_REPEATED, "the change was made or refused before; the answer, which had "
				  "the old value in it, was lost" },
		{ XKV_E_NO_SESSION, "the server has too many clients to recognise copies of a "
				    "change: try again" },
		{ XKV_E_READ_ONLY,
		  "the server refuses writes: it cannot write a snapshot or its log, or is in "
		  "front of a Redis that refuses them or takes them over TCP only" },
		{ XKV_E_ABORTED, "a condition does not hold, and nothing was done" },
		{ XKV_E_NO_LOG, "the server has no write log (appendonly), so no change can be "
				"known to be on its disk" },
		{ XKV_E_TIMEOUT, "no answer in time: are host and port right, and does the server "
				 "allow this client?" },
		{ XKV_E_REFUSED, "connection refused: is xkvd running?" },
		{ XKV_E_UNREACHABLE, "the host cannot be reached: check address and route" },
		{ XKV_E_HOST, "the host name cannot be resolved" },
		{ XKV_E_PROTOCOL, "the answer broke the protocol: is that port an xkv server's?" },
		{ XKV_E_INVALID, "arguments that contradict each other or are out of range" },
		{ XKV_E_OUT_OF_MEMORY, "out of memory" },
		{ XKV_E_SYSTEM, "a system call failed: errno has the reason" },
		{ XKV_E_NO_DATABASE, "the server does not have this database: see its directive "
				     "databases" },
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].code == error)
			return texts[i].text;
	return "unknown error";
}
