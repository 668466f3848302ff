/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The connection of the commands that are not in the UDP protocol: to the server's TCP port or its
 * Unix socket, with TLS or without, and with a user and password.  hiredis connects, and makes and
 * parses RESP; for TLS the bytes go through OpenSSL in between.
 */
#include "tcp.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tcp {
	redisContext *redis;
	SSL_CTX *rules; /* NULL = no TLS, as `ssl` */
	SSL *ssl;
	enum { UNKNOWN, XKVD, IN_FRONT } answers; /* IN_FRONT: xkvd in front of a Redis */
};

/* ---- errors ----------------------------------------------------------- */

const char *tcp_place(const struct cli *c, char *text, size_t len)
{
	if (c->socket)
		snprintf(text, len, "%s", c->socket);
	else
		snprintf(text, len, "%s port %u (%s)", c->host, c->port, c->tls.on ? "TLS" : "TCP");
	return text;
}

static int unreachable(const struct cli *c, const char *why)
{
	char place[512];

	return fail(c, EXIT_UNREACHABLE, "%s: %s", tcp_place(c, place, sizeof(place)), why);
}

static bool timed_out(void)
{
	return errno == EAGAIN || errno == EWOULDBLOCK;
}

static int fail_tcp(const struct cli *c, const redisContext *redis)
{
	if (redis && redis->err == REDIS_ERR_IO && timed_out())
		return unreachable(c, "no answer in time");
	return unreachable(c, redis ? redis->errstr : "out of memory");
}

/* What OpenSSL has to say of the last call that returned `ret`. */
static int fail_tls(const struct cli *c, const SSL *ssl, int ret)
{
	int kind = SSL_get_error(ssl, ret);
	long verdict = SSL_get_verify_result(ssl);
	unsigned long error = ERR_peek_last_error();
	const char *reason = error ? ERR_reason_error_string(error) : NULL;

	if ((kind == SSL_ERROR_SYSCALL || kind == SSL_ERROR_WANT_READ) && timed_out())
		reason = "no answer in time";
	else if (verdict != X509_V_OK && !c->tls.insecure)
		reason = X509_verify_cert_error_string(verdict);
	else if (!reason)
		reason = kind == SSL_ERROR_SYSCALL && errno
				 ? strerror(errno)
				 : "the server has closed the connection";
	return unreachable(c, reason);
}

/* ---- TLS -------------------------------------------------------------- */

static int bad_file(const struct cli *c, const char *option, const char *path)
{
	const char *reason = ERR_reason_error_string(ERR_peek_last_error());

	return fail(c, EXIT_USAGE, "%s '%s': %s", option, path, reason ? reason : "cannot be used");
}

/* The authorities to trust, and the client's certificate.  An exit code. */
static int read_files(const struct cli *c, SSL_CTX *rules)
{
	const struct cli_tls *t = &c->tls;

	if (!t->cacert && !t->cacertdir && !SSL_CTX_set_default_verify_paths(rules))
		return bad_file(c, "--tls", "the system's authorities");
	if (t->cacert && !SSL_CTX_load_verify_file(rules, t->cacert))
		return bad_file(c, "--cacert", t->cacert);
	if (t->cacertdir && !SSL_CTX_load_verify_dir(rules, t->cacertdir))
		return bad_file(c, "--cacertdir", t->cacertdir);
	if (t->cert && SSL_CTX_use_certificate_chain_file(rules, t->cert) != 1)
		return bad_file(c, "--cert", t->cert);
	if (t->key && SSL_CTX_use_PrivateKey_file(rules, t->key, SSL_FILETYPE_PEM) != 1)
		return bad_file(c, "--key", t->key);
	return 0;
}

/* As with redis-cli the certificate's chain counts, not the name in it.  An exit code. */
static int tls_start(const struct cli *c, struct tcp *tcp)
{
	int err, ret;

	if (!c->tls.cert != !c->tls.key)
		return fail(c, EXIT_USAGE, "--cert and --key need each other");
	tcp->rules = SSL_CTX_new(TLS_client_method());
	if (!tcp->rules)
		return unreachable(c, "out of memory");
	err = read_files(c, tcp->rules);
	if (err)
		return err;
	SSL_CTX_set_verify(tcp->rules, c->tls.insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
	tcp->ssl = SSL_new(tcp->rules);
	if (!tcp->ssl || !SSL_set_fd(tcp->ssl, tcp->redis->fd) ||
	    (c->tls.sni && !SSL_set_tlsext_host_name(tcp->ssl, c->tls.sni)))
		return unreachable(c, "out of memory");
	ERR_clear_error();
	errno = 0;
	ret = SSL_connect(tcp->ssl);
	return ret == 1 ? 0 : fail_tls(c, tcp->ssl, ret);
}

static int tls_send(const struct cli *c, SSL *ssl, const char *bytes, long long len)
{
	int ret;

	ERR_clear_error();
	errno = 0;
	ret = SSL_write(ssl, bytes, (int)len);
	return ret > 0 ? 0 : fail_tls(c, ssl, ret);
}

/* Reads what has come, or waits for something.  An exit code. */
static int tls_read(const struct cli *c, struct tcp *tcp)
{
	char bytes[16384];
	int ret;

	ERR_clear_error();
	errno = 0;
	ret = SSL_read(tcp->ssl, bytes, sizeof(bytes));
	if (ret <= 0)
		return fail_tls(c, tcp->ssl, ret);
	if (redisReaderFeed(tcp->redis->reader, bytes, (size_t)ret) != REDIS_OK)
		return unreachable(c, "out of memory");
	return 0;
}

/* Reads until there is a reply.  An exit code. */
static int tls_receive(const struct cli *c, struct tcp *tcp, void **reply)
{
	int err = 0;

	while (!err) {
		if (redisGetReplyFromReader(tcp->redis, reply) != REDIS_OK)
			return fail_tcp(c, tcp->redis);
		if (*reply)
			return 0;
		err = tls_read(c, tcp);
	}
	return err;
}

/* ---- commands --------------------------------------------------------- */

/* Sends a command.  An exit code. */
static int send_words(const struct cli *c, struct tcp *tcp, int argc, const char **argv)
{
	int err = 0, done = 0;
	char *bytes;
	long long len;

	len = redisFormatCommandArgv(&bytes, argc, argv, NULL);
	if (len < 0)
		return unreachable(c, "out of memory");
	if (tcp->ssl)
		err = tls_send(c, tcp->ssl, bytes, len);
	else if (redisAppendFormattedCommand(tcp->redis, bytes, (size_t)len) != REDIS_OK)
		err = fail_tcp(c, tcp->redis);
	while (!err && !tcp->ssl && !done)
		if (redisBufferWrite(tcp->redis, &done) != REDIS_OK)
			err = fail_tcp(c, tcp->redis);
	redisFreeCommand(bytes);
	return err;
}

/* Sends a command and waits for its reply.  An exit code. */
static int exchange(const struct cli *c, struct tcp *tcp, int argc, const char **argv,
		    redisReply **reply)
{
	int err;

	*reply = NULL;
	if (!tcp->ssl) {
		*reply = redisCommandArgv(tcp->redis, argc, argv, NULL);
		return *reply ? 0 : fail_tcp(c, tcp->redis);
	}
	err = send_words(c, tcp, argc, argv);
	return err ? err : tls_receive(c, tcp, (void **)reply);
}

/* The reply to the command `name`, which may be NULL.  NULL if it is an error. */
static redisReply *checked(const struct cli *c, const char *name, redisReply *reply, int *err)
{
	if (!reply || reply->type != REDIS_REPLY_ERROR)
		return reply;
	*err = fail(c, EXIT_SERVER, "%s: the server says: %s%s", name, reply->str,
		    strncmp(reply->str, "NOAUTH", 6)
			    ? ""
			    : " (-a, --pass-file or XKVCLI_AUTH gives it)");
	freeReplyObject(reply);
	return NULL;
}

/* The reply to words, of which `name` is the command.  NULL after an error. */
static redisReply *ask(const struct cli *c, struct tcp *tcp, const char *name, int argc,
		       const char **argv, int *err)
{
	redisReply *reply;

	*err = exchange(c, tcp, argc, argv, &reply);
	return checked(c, name, reply, err);
}

redisReply *tcp_ask_words(const struct cli *c, struct tcp *tcp, int argc, const char **argv,
			  int *err)
{
	return ask(c, tcp, argv[0], argc, argv, err);
}

static int count_words(const char *second, const char *third)
{
	return !second ? 1 : !third ? 2 : 3;
}

redisReply *tcp_ask(const struct cli *c, struct tcp *tcp, const char *name, const char *second,
		    const char *third, int *err)
{
	const char *argv[] = { name, second, third };

	return ask(c, tcp, name, count_words(second, third), argv, err);
}

/* Has the server refused the connection with this reply?  It then closes it. */
static bool is_turned_away(const redisReply *reply)
{
	return reply->type == REDIS_REPLY_ERROR &&
	       (!strncmp(reply->str, "DENIED", 6) ||
		!strncmp(reply->str, "ERR max number of clients", 25));
}

/* Sends `argv`, a form of INFO; *is: an xkvd has answered.  An exit code. */
static int is_xkvd(const struct cli *c, struct tcp *tcp, int argc, const char **argv, bool *is)
{
	redisReply *reply;
	int err = exchange(c, tcp, argc, argv, &reply);

	if (err)
		return err;
	*is = reply->type == REDIS_REPLY_STRING && strstr(reply->str, "\nxkv_version:");
	if (is_turned_away(reply))
		err = fail(c, EXIT_SERVER, "the server says: %s", reply->str);
	freeReplyObject(reply);
	return err;
}

/*
 * Finds out whether plain commands reach xkvd itself.  If it is in front of a Redis they are passed
 * on, and only those behind the word XKV are for xkvd.  An exit code.
 */
static int look_who_answers(const struct cli *c, struct tcp *tcp)
{
	const char *argv[] = { "XKV", "INFO", "server" };
	bool is = false;
	int err = is_xkvd(c, tcp, 2, argv + 1, &is);

	tcp->answers = XKVD;
	if (err || is)
		return err;
	err = is_xkvd(c, tcp, 3, argv, &is);
	if (is)
		tcp->answers = IN_FRONT;
	return err;
}

redisReply *tcp_ask_xkvd(const struct cli *c, struct tcp *tcp, const char *name, const char *second,
			 const char *third, int *err)
{
	const char *argv[] = { "XKV", name, second, third };
	int argc = count_words(second, third);

	*err = tcp->answers == UNKNOWN ? look_who_answers(c, tcp) : 0;
	if (*err)
		return NULL;
	if (tcp->answers == IN_FRONT)
		return ask(c, tcp, name, argc + 1, argv, err);
	return ask(c, tcp, name, argc, argv + 1, err);
}

redisReply *tcp_await(const struct cli *c, struct tcp *tcp, int argc, const char **argv,
		      const sigset_t *mask, int *err)
{
	struct pollfd poll = { .fd = tcp->redis->fd, .events = POLLIN };
	void *reply = NULL;

	*err = send_words(c, tcp, argc, argv);
	while (!*err) {
		if (redisGetReplyFromReader(tcp->redis, &reply) != REDIS_OK)
			*err = fail_tcp(c, tcp->redis);
		if (*err || reply)
			break;
		if (!(tcp->ssl && SSL_pending(tcp->ssl)) && ppoll(&poll, 1, NULL, mask) < 0)
			break;
		if (tcp->ssl)
			*err = tls_read(c, tcp);
		else if (redisBufferRead(tcp->redis) != REDIS_OK)
			*err = fail_tcp(c, tcp->redis);
	}
	return checked(c, argv[0], reply, err);
}

/* Runs a command of which only the success matters.  An exit code. */
static int tell(const struct cli *c, struct tcp *tcp, const char *name, const char *second,
		const char *third)
{
	int err;
	redisReply *reply = tcp_ask(c, tcp, name, second, third, &err);

	if (reply)
		freeReplyObject(reply);
	return err;
}

/* Gives user and password, and selects the database.  An exit code. */
static int log_in(const struct cli *c, struct tcp *tcp)
{
	char database[16];
	int err = 0;

	if (c->user)
		err = tell(c, tcp, "AUTH", c->user, c->password ? c->password : "");
	else if (c->password)
		err = tell(c, tcp, "AUTH", c->password, NULL);
	if (err || !c->database)
		return err;
	snprintf(database, sizeof(database), "%u", c->database);
	return tell(c, tcp, "SELECT", database, NULL);
}

struct tcp *tcp_open(const struct cli *c, int *err)
{
	unsigned int ms = c->timeout_ms ? c->timeout_ms : 1000;
	struct timeval tv = { .tv_sec = ms / 1000, .tv_usec = (int)(ms % 1000 * 1000) };
	struct tcp *tcp = calloc(1, sizeof(*tcp));

	if (!tcp) {
		*err = unreachable(c, "out of memory");
		return NULL;
	}
	tcp->redis = c->socket ? redisConnectUnixWithTimeout(c->socket, tv)
			       : redisConnectWithTimeout(c->host, (int)c->port, tv);
	if (!tcp->redis || tcp->redis->err || redisSetTimeout(tcp->redis, tv) != REDIS_OK)
		*err = fail_tcp(c, tcp->redis);
	else
		*err = c->tls.on ? tls_start(c, tcp) : 0;
	if (!*err)
		*err = log_in(c, tcp);
	if (!*err)
		return tcp;
	tcp_close(tcp);
	return NULL;
}

int tcp_wait_without_limit(const struct cli *c, struct tcp *tcp)
{
	struct timeval none = { 0 };

	if (redisSetTimeout(tcp->redis, none) == REDIS_OK &&
	    (c->socket || redisEnableKeepAlive(tcp->redis) == REDIS_OK))
		return 0;
	return fail_tcp(c, tcp->redis);
}

void tcp_close(struct tcp *tcp)
{
	SSL_free(tcp->ssl);
	SSL_CTX_free(tcp->rules);
	if (tcp->redis)
		redisFree(tcp->redis);
	free(tcp);
}
