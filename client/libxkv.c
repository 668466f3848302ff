/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libxkv: builds requests, sends them, waits for the one reply that belongs to
 * each, and takes it apart.
 *
 * It stands between a program and whatever arrives on a UDP socket, so a reply
 * is checked as a whole before a byte of it is believed; what does not belong
 * to the request that is under way is ignored.
 *
 * One request is under way at a time.  That keeps the commands of a batch in
 * their order even when the server answers only the first few of a request and
 * the rest goes out again as a new one.  And it makes one slot of the server's
 * memory of changes enough: see XKV_F_ONCE in docs/protocol.md.  The session
 * that it has there is proven to be this host's before the first change.
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
#define DEFAULT_RETRIES    8
#define PAYLOAD_MIN        512          /* room for a token, the longest key and some value */
#define COUNT_MAX          255          /* hdr.count is a byte */
#define ONCE_SLOTS         8            /* a change takes the slot that its id names: always 0 */
/* when the time is up: datagrams, more than a socket holds */
#define LATE_LOOKS         1000
#define ONCE_REPEAT_MS     50000        /* copies of a change come no later: it is known for 60 s */
#define SESSIONS_TRIED     8            /* before believing that the server has no room for one */
#define BUSY_MS            1            /* before the next try of what was contended; doubles */
#define CHUNK_BYTES        (64U * 1024) /* a batch's values are kept in chunks of this size */

/* The numbers of the API are those of the wire; here the compiler checks it. */
_Static_assert(XKV_CMD_PING == (int)XKV_OP_PING && XKV_CMD_GET == (int)XKV_OP_GET &&
		       XKV_CMD_SET == (int)XKV_OP_SET && XKV_CMD_DELETE == (int)XKV_OP_DELETE &&
		       XKV_CMD_EXPIRE == (int)XKV_OP_EXPIRE &&
		       XKV_CMD_INCR == (int)XKV_OP_INCR &&
		       XKV_CMD_APPEND == (int)XKV_OP_APPEND && XKV_CMD_TTL == (int)XKV_OP_TTL &&
		       XKV_CMD_TOUCH == (int)XKV_OP_TOUCH,
	       "commands are opcodes");
_Static_assert(XKV_E_MISS == -(int)XKV_MISS && XKV_E_NOT_STORED == -(int)XKV_NOT_STORED &&
		       XKV_E_TOO_LARGE == -(int)XKV_TOO_LARGE && XKV_E_PAD == -(int)XKV_PAD &&
		       XKV_E_NO_MEMORY == -(int)XKV_NO_MEMORY && XKV_E_BUSY == -(int)XKV_BUSY &&
		       XKV_E_BAD_REQUEST == -(int)XKV_BAD_REQUEST &&
		       XKV_E_BAD_OPCODE == -(int)XKV_BAD_OPCODE &&
		       XKV_E_BAD_KEY == -(int)XKV_BAD_KEY &&
		       XKV_E_BAD_VERSION == -(int)XKV_BAD_VERSION &&
		       XKV_E_NOAUTH == -(int)XKV_NOAUTH &&
		       XKV_E_NOT_NUMBER == -(int)XKV_NOT_NUMBER &&
		       XKV_E_OVERFLOW == -(int)XKV_OVERFLOW &&
		       XKV_E_REPEATED == -(int)XKV_REPEATED &&
		       XKV_E_NO_SESSION == -(int)XKV_NO_SESSION &&
		       XKV_E_READ_ONLY == -(int)XKV_READ_ONLY,
	       "errors are negative statuses");

/* One key of an xkv_scan(): the request has one operation for all that are asked for together. */
#define CMD_SCAN ((enum xkv_command)XKV_OP_SCAN)
/* What a change is preceded by, where the server has not yet seen who sends it. */
#define CMD_SESSION ((enum xkv_command)XKV_OP_SESSION)

/* Values of the last call.  Chunks never move, so pointers into them stay good. */
struct chunk {
	struct chunk *next;
	size_t used;
	unsigned char data[CHUNK_BYTES];
};

struct xkv {
	int fd;
	struct addrinfo *addrs; /* all that the name stands for */
	struct addrinfo *addr;  /* the one that fd is connected to */
	unsigned int addr_count;
	bool proven; /* this address has answered: stay with it */

	unsigned int timeout_ms, retry_ms, retries, payload_max;
	uint64_t wait_us; /* what SO_RCVTIMEO is set to */
	uint64_t id;      /* of the request that is under way */
	unsigned int pad; /* payload that one returned value needs, as the server said */
	unsigned int scan_pad; /* payload that a SCAN needs */
	bool once;             /* changes are sent with XKV_F_ONCE, under this session */
	uint64_t session;
	bool session_settled; /* it is proven, or the server knows of no proofs */
	bool has_token;
	unsigned char token[XKV_TOKEN_BYTES];

	struct chunk *chunks; /* the newest first */
	__attribute__((aligned(8))) unsigned char out[XKV_PAYLOAD_MAX4];
	__attribute__((aligned(8))) unsigned char in[XKV_PAYLOAD_MAX4];
};

/* A datagram under way. */
struct request {
	struct xkv_cmd *cmds;
	unsigned int count;
	bool once;         /* the server recognises its copies */
	size_t len;        /* payload, padding included */
	unsigned int sent; /* so often */
	int settled;       /* commands that the reply answered, or the error that it was */
	int failure;       /* what to report if no answer comes */
};

/* ---- time ------------------------------------------------------------- */

static uint64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

/*
 * How long to wait for an answer after repeat number `n`; spread, so that
 * clients which began together do not repeat together.
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
 * Makes room for all values of one reply before the request goes out: a value
 * that came with a DELETE could not be asked for again.  Each value has a
 * result in front of it that is larger than the zero byte behind it.
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

static size_t head_len(const struct xkv *h, bool once)
{
	return sizeof(struct xkv_hdr) + (h->has_token ? XKV_TOKEN_BYTES : 0) +
	       (once ? XKV_SESSION_BYTES : 0);
}

static size_t wire_value_len(const struct xkv_cmd *cmd)
{
	return cmd->command == XKV_CMD_INCR ? sizeof(cmd->amount) : cmd->value_len;
}

static size_t op_len(const struct xkv_cmd *cmd)
{
	return sizeof(struct xkv_op) + XKV_PADDED(cmd->key_len) + XKV_PADDED(wire_value_len(cmd));
}

/* Whether the result may carry a value of any length: those are the replies that padding is for. */
static bool returns_value(const struct xkv_cmd *cmd)
{
	return cmd->command == XKV_CMD_GET || cmd->command == CMD_SCAN ||
	       (cmd->flags & XKV_RETURN);
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

/* Puts a command, or `keys` commands of a scan. */
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

/* Puts as many commands as fit.  *pad: the payload that their values need. */
static unsigned char *put_ops(const struct xkv *h, struct request *req, unsigned char *p, size_t n,
			      size_t *pad)
{
	const struct xkv_cmd *cmd = req->cmds;

	for (; req->count < n && req->count < COUNT_MAX; cmd++, req->count++) {
		if ((size_t)(p - h->out) + op_len(cmd) > h->payload_max)
			break;
		/* A change goes alone: only so it can be recognised. */
		if (req->count && h->once && (changes(&req->cmds[0]) || changes(cmd)))
			break;
		if (returns_value(cmd))
			*pad += h->pad;
		p = put_op(p, cmd, 0);
	}
	return p;
}

/*
 * The next id.  Ids of changes are multiples of ONCE_SLOTS, so that all of them
 * are of one slot, in which the server keeps the last.
 */
static uint64_t next_id(struct xkv *h, bool once)
{
	h->id = once ? (h->id | (ONCE_SLOTS - 1)) + 1 : h->id + 1;
	return h->id;
}

/* Puts as many commands as fit into h->out, under a new id. */
static void build(struct xkv *h, struct request *req, struct xkv_cmd *cmds, size_t n, bool once)
{
	unsigned char *p = h->out + sizeof(struct xkv_hdr);
	size_t pad = 0, len;
	struct xkv_hdr hdr;
	bool scan = cmds[0].command == CMD_SCAN;

	*req = (struct request){ .cmds = cmds, .failure = XKV_E_TIMEOUT };
	req->once = once && (changes(&cmds[0]) || cmds[0].command == CMD_SESSION);
	if (h->has_token)
		p = put_bytes(p, h->token, sizeof(h->token));
	if (req->once)
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
		.flags = (uint8_t)((h->has_token ? XKV_F_TOKEN : 0) | (req->once ? XKV_F_ONCE : 0)),
		.count = scan ? 1 : (uint8_t)req->count,
		.length = htobe16((uint16_t)len),
		.id = htobe64(next_id(h, req->once)),
	};
	memcpy(h->out, &hdr, sizeof(hdr));
}

/* ---- taking replies apart --------------------------------------------- */

/* What the walk over a reply stands at. */
struct cursor {
	const unsigned char *pos, *end;
};

/* The next result and its value (NULL if it has none); false if it is not whole or not sane. */
static bool next_result(struct cursor *c, struct xkv_result *res, const unsigned char **value)
{
	size_t left = (size_t)(c->end - c->pos), len;

	if (left < sizeof(*res))
		return false;
	memcpy(res, c->pos, sizeof(*res));
	c->pos += sizeof(*res);
	left -= sizeof(*res);
	*value = NULL;
	if (res->zero)
		return false;
	len = be32toh(res->value_len);
	if (!(res->flags & XKV_HAS_VALUE))
		return !len || res->status == XKV_TOO_LARGE || res->status == XKV_PAD;
	if (res->status != XKV_OK && res->status != XKV_NOT_STORED)
		return false;
	/* `len` first: rounding it up must not wrap. */
	if (len > left || XKV_PADDED(len) > left)
		return false;
	*value = c->pos;
	c->pos += XKV_PADDED(len);
	return true;
}

/* Whether a result has a value if the command gets one, and none if it does not. */
static bool value_sane(const struct xkv_cmd *cmd, const struct xkv_result *res, const void *value)
{
	if (returns_number(cmd))
		return res->status == XKV_OK ? value && be32toh(res->value_len) == sizeof(int64_t)
					     : !value;
	if (!returns_value(cmd))
		return !value;
	return value || res->status != XKV_OK || (cmd->flags & XKV_RETURN);
}

/* Whether the results are whole, as many as the header says, and fit the commands. */
static bool results_sane(const struct request *req, struct cursor c, unsigned int count)
{
	const unsigned char *value;
	struct xkv_result res;

	for (unsigned int i = 0; i < count; i++) {
		if (!next_result(&c, &res, &value) || res.opcode != (uint8_t)req->cmds[i].command)
			return false;
		if (!value_sane(&req->cmds[i], &res, value))
			return false;
		if (res.status == XKV_PAD && (i + 1 != count || !returns_value(&req->cmds[i])))
			return false;
	}
	return c.pos == c.end;
}

/* A status that this version of the library does not know is an answer all the same. */
static int status_error(unsigned int status)
{
	return status <= XKV_READ_ONLY ? -(int)status : XKV_E_PROTOCOL;
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
 * Takes PAD as an order.  It must ask for more than it got, else this would
 * not end, and for no more than a datagram holds.
 */
static int take_pad(struct xkv *h, const struct request *req, uint32_t want)
{
	unsigned int *pad = req->cmds[0].command == CMD_SCAN ? &h->scan_pad : &h->pad;

	if (want <= req->len)
		return XKV_E_PROTOCOL;
	if (want > h->payload_max)
		return XKV_E_PAD;
	if (want > *pad)
		*pad = want;
	return 0;
}

/* Hands out checked results.  How many commands they settle, or an error. */
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
			 * What came before it is done; if it cannot be had, the next reply says so
			 * first.
			 */
			return err && !i ? err : (int)i;
		}
		take_result(h, &req->cmds[i], &res, value);
	}
	return (int)count;
}

/*
 * What a header-only reply comes to.  REPEATED is the answer to one command, all
 * others tell that none was looked at.
 */
static int refusal(const struct request *req, unsigned int status)
{
	if (status != XKV_REPEATED || !req->once)
		return status_error(status);
	req->cmds[0].reply.status = XKV_E_REPEATED;
	return 1;
}

enum verdict { FOREIGN, BROKEN, OURS };

/*
 * Judges a datagram.  OURS: the reply to the request under way; what it comes
 * to is in req->settled.  BROKEN: it says that it is, but it is malformed.
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
	if (hdr.status != XKV_OK) {
		req->settled = refusal(req, hdr.status);
		return hdr.count || length != sizeof(hdr) ? BROKEN : OURS;
	}
	c = (struct cursor){ h->in + sizeof(hdr), h->in + length };
	if (!hdr.count || hdr.count > req->count || !results_sane(req, c, hdr.count))
		return BROKEN;
	/* A SCAN cut short, and half of the datagram unused: a longer request gets more. */
	if (req->cmds[0].command == CMD_SCAN && hdr.count < req->count && len < h->payload_max / 2)
		h->scan_pad = h->payload_max;
	req->settled = take_results(h, req, c, hdr.count);
	return OURS;
}

/* ---- the socket ------------------------------------------------------- */

static bool set_wait(struct xkv *h, uint64_t us)
{
	struct timeval tv;

	us = us < 1000 ? 1000 : us; /* zero would mean for ever */
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

/* Connects to the next address of the name that can be connected to, round about. */
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

/* What an errno of send() or recv() means: 0 = lost on the way, go on; else what to report. */
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
	case EAGAIN: /* recv(): nothing came; send(): no buffer, as good as lost */
	case ENOBUFS:
	case EINTR:
		return 0;
	default:
		return XKV_E_SYSTEM;
	}
}

/* Sends the request.  0, also if it was lost on the way, or XKV_E_SYSTEM. */
static int transmit(struct xkv *h, struct request *req)
{
	int err;

	req->sent++;
	/* An ICMP error of an earlier datagram is reported once, instead of sending: hence twice.
	 */
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
 * Waits for the reply until `until`.  1 and req->settled, 0 if none came, or an
 * error; XKV_E_REFUSED and XKV_E_UNREACHABLE come at once.  All that has come is looked
 * at even if this process did not run before the time was up.
 */
static int await(struct xkv *h, struct request *req, uint64_t until)
{
	for (unsigned int looks = 0; looks < LATE_LOOKS;) {
		uint64_t now = now_us(), left = until > now ? until - now : 0;
		enum verdict verdict;
		ssize_t len;

		/* What the socket is set to is near enough in the common case: saves a system call.
		 * At first it is set to nothing, and would wait for ever.
		 */
		if (left &&
		    (!h->wait_us || h->wait_us > left + 1000 || h->wait_us + 1000 < left) &&
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

/* After a refusal: true if there is another address to try at once. */
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
 * Sends the request until it is answered, with pauses that grow.  1 and
 * req->settled, or an error.
 */
static int exchange(struct xkv *h, struct request *req, uint64_t deadline)
{
	uint64_t now = now_us(), last = deadline;
	unsigned int turns = 0;

	/* A copy that comes when the server has forgotten the first would be done again. */
	if (req->once && last > now + ONCE_REPEAT_MS * 1000ULL)
		last = now + ONCE_REPEAT_MS * 1000ULL;
	for (unsigned int n = 0; now < deadline; now = now_us()) {
		uint64_t until = now + backoff_us(h, n);
		int rc;

		if (until > last || n >= h->retries)
			until = deadline;
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
			/* Nobody is there now; a server that is being restarted soon will be. */
			if (n < h->retries)
				pause_until(until);
		}
		if (n++ >= h->retries)
			break;
	}
	return req->failure;
}

/* ---- once ------------------------------------------------------------- */

/* A session that nobody can guess; 0 is nobody's. */
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
 * Has the session proven, so that nobody who makes up senders takes the server's room for it.  A
 * server that knows of no proofs takes it as it was drawn.
 */
static int prove(struct xkv *h, uint64_t deadline)
{
	struct xkv_cmd cmd = { .command = CMD_SESSION };
	struct request req;
	int rc;

	build(h, &req, &cmd, 1, true);
	rc = exchange(h, &req, deadline);
	if (rc == XKV_E_BAD_REQUEST)
		h->once = false; /* the server is too old for all of it */
	else if (rc < 0 && rc != XKV_E_NO_SESSION)
		return rc;
	else if (rc > 0 && !cmd.reply.status && cmd.reply.number)
		h->session = htobe64((uint64_t)cmd.reply.number);
	h->session_settled = true;
	return 0;
}

/* Was the only command of the request contended?  Then nothing was done. */
static bool was_busy(const struct request *req, int rc)
{
	return rc == 1 && req->count == 1 && req->settled == 1 &&
	       req->cmds[0].reply.status == XKV_E_BUSY;
}

/*
 * The server has no room for the session.  True if the change can be sent again: with another
 * session, which falls to another place, if there is no copy on its way that may yet find
 * room; or without one if the condition of the change keeps a copy from being done.
 */
static bool without_room(struct xkv *h, const struct request *req, unsigned int *tried, bool *once)
{
	if (req->sent == 1 && ++*tried < SESSIONS_TRIED)
		return !new_session(h);
	*once = false;
	return req->cmds[0].flags & XKV_CAS;
}

/* Has the first of the commands answered.  1 and req->settled, or an error. */
static int deliver(struct xkv *h, struct request *req, struct xkv_cmd *cmds, size_t n)
{
	uint64_t deadline = now_us() + (uint64_t)h->timeout_ms * 1000, pause = BUSY_MS * 1000;
	unsigned int sessions = 0;
	bool once = h->once;
	int rc;

	for (;;) {
		if (once && changes(&cmds[0]) && !h->session_settled) {
			*req = (struct request){ .cmds = cmds };
			rc = prove(h, deadline);
			if (rc)
				return rc;
			once = h->once;
		}
		build(h, req, cmds, n, once);
		rc = exchange(h, req, deadline);
		if (was_busy(req, rc) && now_us() + pause < deadline) {
			pause_until(now_us() + pause);
			pause *= 2;
		} else if (rc == XKV_E_BAD_REQUEST && req->once) {
			h->once = once = false; /* the server is too old for it */
		} else if (rc != XKV_E_NO_SESSION || !req->once ||
			   !without_room(h, req, &sessions, &once)) {
			return rc;
		}
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

/* Whether a command has what only others have. */
static bool misfits(const struct xkv_cmd *cmd)
{
	bool set = cmd->command == XKV_CMD_SET;

	if (cmd->command < XKV_CMD_PING || cmd->command > XKV_CMD_TOUCH)
		return true;
	if ((cmd->flags & ~known_flags(cmd->command)) || (cmd->version && !(cmd->flags & XKV_CAS)))
		return true;
	if (cmd->value_len && !set && cmd->command != XKV_CMD_APPEND)
		return true;
	if (cmd->ttl_ms && !set && cmd->command != XKV_CMD_EXPIRE)
		return true;
	return (cmd->amount && cmd->command != XKV_CMD_INCR) ||
	       (cmd->key_len && cmd->command == XKV_CMD_PING);
}

/* The server would refuse what this refuses; a clear error here costs no round trip. */
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
	if (cmd->ttl_ms > XKV_TTL_MAX && !(cmd->flags & XKV_ABSTTL))
		return XKV_E_INVALID;
	if (cmd->value_len > xkv_value_max(h, cmd->key_len)) {
		cmd->reply.value_len = cmd->value_len;
		return XKV_E_TOO_LARGE;
	}
	return 0;
}

static int check_all(const struct xkv *h, struct xkv_cmd *cmds, size_t n)
{
	int err = 0, first = 0;

	for (size_t i = 0; i < n; i++) {
		cmds[i].reply = (struct xkv_reply){ 0 };
		err = check(h, &cmds[i]);
		cmds[i].reply.status = err;
		if (err && !first)
			first = err;
	}
	for (size_t i = 0; first && i < n; i++)
		if (!cmds[i].reply.status)
			cmds[i].reply.status = XKV_E_INVALID;
	return first;
}

/* Runs commands that were checked.  How many were answered; with less than all of them, *err. */
static size_t run_all(struct xkv *h, struct xkv_cmd *cmds, size_t n, int *err)
{
	struct request req;
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
		/* Fewer than asked: the rest goes out again.  None: it goes out again with padding.
		 */
		*err = 0;
	}
	for (size_t i = done; i < n; i++)
		cmds[i].reply.status = *err;
	return done;
}

int xkv_batch(struct xkv *h, struct xkv_cmd *cmds, size_t n)
{
	int err = check_all(h, cmds, n);

	if (err)
		values_reset(h);
	else
		run_all(h, cmds, n, &err);
	return err;
}

/* A batch of one; its answer is the result of the call. */
static int run(struct xkv *h, struct xkv_cmd cmd, struct xkv_reply *out)
{
	int err = xkv_batch(h, &cmd, 1);

	if (out)
		*out = cmd.reply;
	return err ? err : cmd.reply.status;
}

/* A command and the arguments that all of the calls have. */
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

/* Everything that is a SET. */
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

int xkv_replace(struct xkv *h, const void *key, size_t key_len, const void *value,
		size_t value_len, uint64_t ttl_ms, struct xkv_reply *out)
{
	return run_set(h, key, key_len, value, value_len, ttl_ms, 0, XKV_XX, out);
}

int xkv_incr(struct xkv *h, const void *key, size_t key_len, int64_t amount, unsigned int flags,
	     struct xkv_reply *out)
{
	return run(h,
		   (struct xkv_cmd){ ON_KEY(XKV_CMD_INCR), .amount = amount, .flags = flags }, out);
}

int xkv_append(struct xkv *h, const void *key, size_t key_len, const void *value,
	       size_t value_len, unsigned int flags, struct xkv_reply *out)
{
	return run(h,
		   (struct xkv_cmd){ ON_KEY(XKV_CMD_APPEND), .value = value,
				     .value_len = value_len, .flags = flags },
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
	return run(h,
		   (struct xkv_cmd){ ON_KEY(XKV_CMD_EXPIRE), .ttl_ms = ttl_ms, .flags = flags },
		   NULL);
}

int xkv_persist(struct xkv *h, const void *key, size_t key_len)
{
	return xkv_expire(h, key, key_len, 0, 0);
}

/* ---- scans ------------------------------------------------------------ */

/* As many keys as one operation asks for. */
struct scan {
	struct xkv_cmd cmd[XKV_SCAN_MAX];
	char key[XKV_SCAN_MAX][XKV_KEY_MAX + 1];
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Counts a key up.  False if all of its digits were 9. */
static bool next_key(char *key, size_t len)
{
	while (len && is_digit(key[len - 1])) {
		if (key[--len]++ != '9')
			return true;
		key[len] = '0';
	}
	return false;
}

/* Fills in the commands from the key in key[0] on.  How many. */
static size_t scan_fill(struct scan *s, size_t key_len, size_t n)
{
	size_t i = 0;

	do {
		s->cmd[i] = (struct xkv_cmd){ .command = CMD_SCAN, .key = s->key[i],
					      .key_len = key_len };
		if (++i == XKV_SCAN_MAX || i == n)
			return i;
		memcpy(s->key[i], s->key[i - 1], key_len + 1);
	} while (next_key(s->key[i], key_len));
	return i;
}

/* The keys from key[0] on, `n` at most. */
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
	size_t used = head_len(h, h->once) + sizeof(struct xkv_op) + XKV_PADDED(key_len);

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
	/* The addresses are tried in turn with the same bytes, so the smallest limit holds. */
	for (struct addrinfo *ai = h->addrs; ai; ai = ai->ai_next) {
		h->addr_count++;
		if (ai->ai_family == AF_INET6)
			h->payload_max = XKV_PAYLOAD_MAX6;
	}
	return 0;
}

/* The defaults, and what the caller wants instead. */
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
	h->once = !opts->once;
	xkv_set_token(h, opts->token);
	return 0;
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
	/* Ids that cannot be guessed: nobody off the path can forge a reply. */
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
		{ XKV_E_BUSY, "the entry is contended and was not changed: try again" },
		{ XKV_E_BAD_REQUEST, "the server found the request malformed: do the versions of "
				     "client and server fit?" },
		{ XKV_E_BAD_OPCODE, "the server does not know this command: upgrade it" },
		{ XKV_E_BAD_KEY, "a key has 1 to 250 bytes" },
		{ XKV_E_BAD_VERSION, "the server speaks another version of the protocol: upgrade "
				     "client or server" },
		{ XKV_E_NOAUTH, "the server wants a client token, and not the one that was sent" },
		{ XKV_E_NOT_NUMBER, "the value is not an integer or out of range" },
		{ XKV_E_OVERFLOW, "the sum would be out of range: 64 bits, signed" },
		{ XKV_E_REPEATED, "the change was made or refused before; the answer, which had "
				  "the old value in it, was lost" },
		{ XKV_E_NO_SESSION, "the server has too many clients to recognise copies of a "
				    "change: try again" },
		{ XKV_E_READ_ONLY, "the server refuses writes since it could not save a snapshot: see its "
				   "log" },
		{ XKV_E_TIMEOUT, "no answer in time: are host and port right, and does the server "
				 "allow this client?" },
		{ XKV_E_REFUSED, "connection refused: is xkvd running?" },
		{ XKV_E_UNREACHABLE, "the host cannot be reached: check address and route" },
		{ XKV_E_HOST, "the host name cannot be resolved" },
		{ XKV_E_PROTOCOL, "the answer broke the protocol: is that port an xkv server's?" },
		{ XKV_E_INVALID, "arguments that contradict each other or are out of range" },
		{ XKV_E_OUT_OF_MEMORY, "out of memory" },
		{ XKV_E_SYSTEM, "a system call failed: errno has the reason" },
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].code == error)
			return texts[i].text;
	return "unknown error";
}
