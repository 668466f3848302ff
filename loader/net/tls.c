/* SPDX-License-Identifier: BSD-2-Clause */
#include "tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "util/files.h"

#if defined(OPENSSL_VERSION_NUMBER) && OPENSSL_VERSION_NUMBER < 0x30000000L
#error "xkvd needs OpenSSL 3.0 or newer"
#endif

/* ---- output -------------------------------------------------------------- */

/*
 * If the socket takes a part of a record, OpenSSL can write nothing but the rest of it; but when it
 * then reads that the peer wants new keys, it writes an answer, which ends the connection.  So it
 * writes to a BIO that takes all of a record, and holds what the socket refuses.
 */
static BIO_METHOD *output_method; /* made with the first context, for all connections */

static bool tls_hold(struct held *h, const char *bytes, size_t len)
{
	char *more = realloc(h->bytes, h->len + len);

	if (!more)
		return false;
	memcpy(more + h->len, bytes, len);
	h->bytes = more;
	h->len += len;
	return true;
}

/* Takes all of it, or fails for good. */
static int output_write(BIO *bio, const char *bytes, int len)
{
	struct held *h = BIO_get_data(bio);
	ssize_t n = 0;

	BIO_clear_retry_flags(bio);
	if (!h->len)
		n = write(h->fd, bytes, (size_t)len);
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		return -1;
	n = n < 0 ? 0 : n;
	return n == len || tls_hold(h, bytes + n, (size_t)(len - n)) ? len : -1;
}

static long output_control(BIO *bio, int command, long number, void *pointer)
{
	return command == BIO_CTRL_FLUSH;
}

static bool has_output_method(void)
{
	BIO_METHOD *m = output_method;

	if (m)
		return true;
	m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "xkv output");
	if (!m || !BIO_meth_set_write(m, output_write) || !BIO_meth_set_ctrl(m, output_control)) {
		BIO_meth_free(m);
		return false;
	}
	output_method = m;
	return true;
}

/* Were all kept bytes sent?  Else errno says why not: EAGAIN, or the error of `conn`. */
static bool send_held(struct connection *conn)
{
	struct held *h = conn->held;
	ssize_t n;

	if (!h->len)
		return true;
	n = write(h->fd, h->bytes + h->sent, h->len - h->sent);
	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		conn->broken = errno;
		return false;
	}
	h->sent += n < 0 ? 0 : (size_t)n;
	if (h->sent < h->len) {
		errno = EAGAIN;
		return false;
	}
	free(h->bytes);
	h->bytes = NULL;
	h->sent = h->len = 0;
	return true;
}

/* ---- contexts ------------------------------------------------------------ */

static const struct {
	const char *name;
	uint64_t refusal;
} protocols[] = {
	{ "TLSv1", SSL_OP_NO_TLSv1 },
	{ "TLSv1.1", SSL_OP_NO_TLSv1_1 },
	{ "TLSv1.2", SSL_OP_NO_TLSv1_2 },
	{ "TLSv1.3", SSL_OP_NO_TLSv1_3 },
};

#define PROTOCOLS (sizeof(protocols) / sizeof(protocols[0]))

/* Writes a sentence that ends with the reason that OpenSSL gives.  Returns false. */
__attribute__((format(printf, 3, 4))) static bool fails(char *err, size_t err_len, const char *fmt,
							...)
{
	char why[256] = "";
	size_t len;
	va_list ap;

	if (ERR_peek_error())
		ERR_error_string_n(ERR_get_error(), why, sizeof(why));
	va_start(ap, fmt);
	vsnprintf(err, err_len, fmt, ap);
	va_end(ap);
	len = strlen(err);
	if (why[0])
		snprintf(err + len, err_len - len, ": %s", why);
	ERR_clear_error();
	return false;
}

/* The options that refuse all protocols but those that `list` names. */
static bool refuse_protocols(SSL_CTX *ctx, const char *list, char *err, size_t err_len)
{
	uint64_t refused = 0;
	const char *word;
	size_t len, i;

	for (i = 0; i < PROTOCOLS; i++)
		refused |= protocols[i].refusal;
	for (word = list[0] ? list : "TLSv1.2 TLSv1.3"; *(word += strspn(word, " \t"));
	     word += len) {
		len = strcspn(word, " \t");
		for (i = 0; i < PROTOCOLS; i++)
			if (strlen(protocols[i].name) == len &&
			    strncasecmp(word, protocols[i].name, len) == 0)
				break;
		if (i == PROTOCOLS)
			return fails(err, err_len,
				     "Invalid tls-protocols specified. Use a combination of "
				     "'TLSv1', 'TLSv1.1', 'TLSv1.2' and 'TLSv1.3'.");
		refused &= ~protocols[i].refusal;
	}
	SSL_CTX_set_options(ctx, refused);
	return true;
}

/* Always set, also without a password: OpenSSL would ask the terminal. */
static int give_password(char *buffer, int size, int writing, void *arg)
{
	const char *password = arg;
	size_t len = strlen(password);

	if (len >= (size_t)size)
		return -1;
	memcpy(buffer, password, len + 1);
	return (int)len;
}

/* OpenSSL would wait for a FIFO.  That there is no such file it reports itself. */
static bool tls_file_ends(const char *path, char *err, size_t err_len)
{
	FILE *file = file_open(path);

	if (!file && errno == EINVAL)
		return fails(err, err_len, "Failed to load %s: %s", path, file_error(errno));
	if (file)
		fclose(file);
	return true;
}

static bool load_certificate(SSL_CTX *ctx, const char *cert_file, const char *key_file,
			     const char *pass, char *err, size_t err_len)
{
	char *password = (char *)(uintptr_t)pass;
	int ok;

	if (!tls_file_ends(cert_file, err, err_len) || !tls_file_ends(key_file, err, err_len))
		return false;
	SSL_CTX_set_default_passwd_cb(ctx, give_password);
	SSL_CTX_set_default_passwd_cb_userdata(ctx, password);
	if (SSL_CTX_use_certificate_chain_file(ctx, cert_file) != 1)
		return fails(err, err_len, "Failed to load certificate: %s", cert_file);
	ok = SSL_CTX_use_PrivateKey_file(ctx, key_file, SSL_FILETYPE_PEM) == 1 &&
	     SSL_CTX_check_private_key(ctx) == 1;
	SSL_CTX_set_default_passwd_cb_userdata(ctx, NULL); /* the configuration will be freed */
	SSL_CTX_set_default_passwd_cb(ctx, NULL);
	return ok || fails(err, err_len, "Failed to load private key: %s", key_file);
}

static bool load_authorities(SSL_CTX *ctx, const struct config *cfg, char *err, size_t err_len)
{
	const char *file = cfg->tls_ca_cert_file, *dir = cfg->tls_ca_cert_dir;
	static const int modes[] = {
		[TLS_AUTH_NO] = SSL_VERIFY_NONE,
		[TLS_AUTH_YES] = SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
		[TLS_AUTH_OPTIONAL] = SSL_VERIFY_PEER,
	};

	SSL_CTX_set_verify(ctx, modes[cfg->tls_auth_clients], NULL);
	if (file[0] && !tls_file_ends(file, err, err_len))
		return false;
	if ((file[0] || dir[0]) &&
	    SSL_CTX_load_verify_locations(ctx, file[0] ? file : NULL, dir[0] ? dir : NULL) != 1)
		return fails(err, err_len, "Failed to configure CA certificate(s) file/directory");
	return true;
}

static bool load_dh_params(SSL_CTX *ctx, const char *path, char *err, size_t err_len)
{
	BIO *file;
	EVP_PKEY *params;

	if (!tls_file_ends(path, err, err_len))
		return false;
	file = BIO_new_file(path, "r");
	params = file ? PEM_read_bio_Parameters(file, NULL) : NULL;

	BIO_free(file);
	if (params && SSL_CTX_set0_tmp_dh_pkey(ctx, params) == 1)
		return true;
	EVP_PKEY_free(params);
	return fails(err, err_len, "Failed to load DH params file %s", path);
}

static bool choose_ciphers(SSL_CTX *ctx, const struct config *cfg, char *err, size_t err_len)
{
	if (cfg->tls_ciphers[0] && SSL_CTX_set_cipher_list(ctx, cfg->tls_ciphers) != 1)
		return fails(err, err_len, "Failed to configure ciphers: %s", cfg->tls_ciphers);
	if (cfg->tls_ciphersuites[0] && SSL_CTX_set_ciphersuites(ctx, cfg->tls_ciphersuites) != 1)
		return fails(err, err_len, "Failed to configure ciphersuites: %s",
			     cfg->tls_ciphersuites);
	if (cfg->tls_dh_params_file[0])
		return load_dh_params(ctx, cfg->tls_dh_params_file, err, err_len);
	return true;
}

/* Without caching there are no tickets either: every connection proves itself by certificates. */
static bool set_sessions(SSL_CTX *ctx, const struct config *cfg)
{
	static const unsigned char name[] = "xkv";

	if (!cfg->tls_session_caching) {
		SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
		SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET);
		return SSL_CTX_set_num_tickets(ctx, 0) == 1;
	}
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_SERVER);
	SSL_CTX_sess_set_cache_size(ctx, cfg->tls_session_cache_size);
	SSL_CTX_set_timeout(ctx, cfg->tls_session_cache_timeout);
	return SSL_CTX_set_session_id_context(ctx, name, sizeof(name) - 1) == 1;
}

/*
 * A write may end after each record, and go on from where its bytes have moved to.  An idle
 * connection has no buffers.  What is not data ends a read, so that a client that sends nothing
 * else does not hold up the loop.
 */
static void set_modes(SSL_CTX *ctx, bool server_preference)
{
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
				      SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_clear_mode(ctx, SSL_MODE_AUTO_RETRY);
	SSL_CTX_set_read_ahead(ctx, 1);
	SSL_CTX_set_options(ctx, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
					 SSL_OP_IGNORE_UNEXPECTED_EOF);
	if (server_preference)
		SSL_CTX_set_options(ctx, SSL_OP_CIPHER_SERVER_PREFERENCE);
}

/* What Redis says, too. */
static const char *missing(const struct config *cfg)
{
	if (!cfg->tls_cert_file[0])
		return "No tls-cert-file configured!";
	if (!cfg->tls_key_file[0])
		return "No tls-key-file configured!";
	if (cfg->tls_auth_clients != TLS_AUTH_NO && !cfg->tls_ca_cert_file[0] &&
	    !cfg->tls_ca_cert_dir[0])
		return "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when "
		       "tls-auth-clients is enabled!";
	return NULL;
}

SSL_CTX *tls_context_new(const struct config *cfg, char *err, size_t err_len)
{
	const char *lacking = missing(cfg);
	SSL_CTX *ctx;

	if (lacking) {
		snprintf(err, err_len, "%s", lacking);
		return NULL;
	}
	ERR_clear_error();
	ctx = has_output_method() ? SSL_CTX_new(TLS_server_method()) : NULL;
	if (!ctx) {
		fails(err, err_len, "Failed to set up OpenSSL");
		return NULL;
	}
	set_modes(ctx, cfg->tls_prefer_server_ciphers);
	if (refuse_protocols(ctx, cfg->tls_protocols, err, err_len) &&
	    load_certificate(ctx, cfg->tls_cert_file, cfg->tls_key_file, cfg->tls_key_file_pass,
			     err, err_len) &&
	    load_authorities(ctx, cfg, err, err_len) && choose_ciphers(ctx, cfg, err, err_len) &&
	    (set_sessions(ctx, cfg) || fails(err, err_len, "Failed to set up OpenSSL")))
		return ctx;
	SSL_CTX_free(ctx);
	return NULL;
}

/* The authorities of this machine, unless others are said. */
static bool load_upstream(SSL_CTX *ctx, const struct config *cfg, char *err, size_t err_len)
{
	const char *ca = cfg->upstream_ca_cert_file, *cert = cfg->upstream_cert_file;

	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	if (ca[0] && !tls_file_ends(ca, err, err_len))
		return false;
	if (ca[0] ? SSL_CTX_load_verify_locations(ctx, ca, NULL) != 1
		  : SSL_CTX_set_default_verify_paths(ctx) != 1)
		return fails(err, err_len, "Failed to load upstream-ca-cert-file: %s", ca);
	return !cert[0] || load_certificate(ctx, cert, cfg->upstream_key_file, "", err, err_len);
}

SSL_CTX *tls_client_context_new(const struct config *cfg, char *err, size_t err_len)
{
	SSL_CTX *ctx;

	ERR_clear_error();
	ctx = has_output_method() ? SSL_CTX_new(TLS_client_method()) : NULL;
	if (!ctx) {
		fails(err, err_len, "Failed to set up OpenSSL");
		return NULL;
	}
	set_modes(ctx, false);
	if (refuse_protocols(ctx, "TLSv1.2 TLSv1.3", err, err_len) &&
	    load_upstream(ctx, cfg, err, err_len))
		return ctx;
	SSL_CTX_free(ctx);
	return NULL;
}

/* ---- connections --------------------------------------------------------- */

/* In one read: as many of the largest size (16 KiB) as are read in one go; they may be tiny. */
#define RECORDS_A_READ 64
/* Held bytes beyond which nothing is read that asks for more: a record, and a hundred answers. */
#define HELD_MAX (20 << 10)

/*
 * The result of a failed call, as errno: EAGAIN if it waits for the socket, EPROTO if TLS failed.
 * Returns what the transport's function does.
 */
static ssize_t outcome(struct connection *conn, bool reading)
{
	int error = errno; /* of the system call */

	switch (SSL_get_error(conn->ssl, 0)) {
	case SSL_ERROR_WANT_READ:
		conn->write_needs_read = !reading;
		errno = EAGAIN;
		return -1;
	case SSL_ERROR_ZERO_RETURN:
		errno = ECONNRESET; /* where the end of the connection is an error */
		return reading ? 0 : -1;
	case SSL_ERROR_SYSCALL:
		/* EAGAIN is of a call before; without an error the peer has gone. */
		conn->broken = error && error != EAGAIN ? error : ECONNRESET;
		break;
	default:
		conn->broken = EPROTO;
		conn->error = ERR_reason_error_string(ERR_peek_error());
		if (!SSL_is_server(conn->ssl) && SSL_get_verify_result(conn->ssl) != X509_V_OK)
			conn->error =
				X509_verify_cert_error_string(SSL_get_verify_result(conn->ssl));
	}
	errno = conn->broken;
	return -1;
}

static bool is_broken(struct connection *conn)
{
	ERR_clear_error(); /* SSL_get_error() reads it, whichever call left an error there */
	errno = conn->broken;
	return conn->broken;
}

/*
 * Reads as much as is there, because epoll does not know of what OpenSSL has taken from the socket:
 * if something is left, or the end of the connection was met behind data, conn->more says so.
 */
static ssize_t read_records(struct connection *conn, void *buffer, size_t len)
{
	size_t total = 0, n;
	ssize_t ret;

	for (unsigned int i = 0; i < RECORDS_A_READ && total < len; i++) {
		if (SSL_read_ex(conn->ssl, (char *)buffer + total, len - total, &n) != 1) {
			ret = outcome(conn, true);
			conn->more = total && (!ret || errno != EAGAIN);
			return total ? (ssize_t)total : ret;
		}
		total += n;
		if (!SSL_has_pending(conn->ssl))
			return (ssize_t)total;
	}
	conn->more = true;
	return (ssize_t)total;
}

/*
 * Who does not read its replies is read from; who does not read what TLS itself has to say is not,
 * for it may make that more and more.
 */
static ssize_t tls_read(struct connection *conn, void *buffer, size_t len)
{
	const struct held *held = conn->held;
	ssize_t ret = -1;

	conn->more = conn->read_needs_write = false;
	if (is_broken(conn) || (!send_held(conn) && errno != EAGAIN))
		return -1;
	if (held->len <= HELD_MAX)
		ret = read_records(conn, buffer, len);
	conn->read_needs_write = held->len > (held->taken ? HELD_MAX : 0);
	return ret;
}

/* One record; its bytes count as sent when the socket has taken all of it. */
static ssize_t write_record(struct connection *conn, const char *bytes, size_t len)
{
	size_t n;

	if (SSL_write_ex(conn->ssl, bytes, len, &n) != 1)
		return outcome(conn, false);
	if (!conn->held->len)
		return (ssize_t)n;
	conn->held->taken = n;
	errno = EAGAIN;
	return -1;
}

static ssize_t tls_writev(struct connection *conn, const struct iovec *iov, int count)
{
	size_t total, before = 0;
	ssize_t n;

	conn->write_needs_read = false;
	if (is_broken(conn) || !send_held(conn))
		return -1;
	total = conn->held->taken;
	conn->held->taken = 0;
	for (int i = 0; i < count; before += iov[i++].iov_len)
		while (total - before < iov[i].iov_len) {
			n = write_record(conn, (char *)iov[i].iov_base + (total - before),
					 iov[i].iov_len - (total - before));
			if (n < 0)
				return total ? (ssize_t)total : -1;
			total += (size_t)n;
		}
	return (ssize_t)total;
}

/* Tells the peer that this is the end, if there is room for that in the socket. */
static void say_goodbye(struct connection *conn)
{
	if (is_broken(conn) || !SSL_is_init_finished(conn->ssl))
		return;
	SSL_shutdown(conn->ssl);
	send_held(conn);
}

static void tls_finish(struct connection *conn)
{
	say_goodbye(conn);
	transport_tcp.finish(conn);
}

static void free_held(struct held *held)
{
	free(held->bytes);
	free(held);
}

static void tls_close(struct connection *conn)
{
	if (!(SSL_get_shutdown(conn->ssl) & SSL_SENT_SHUTDOWN))
		say_goodbye(conn);
	ERR_clear_error();
	SSL_free(conn->ssl);
	conn->ssl = NULL;
	free_held(conn->held);
	conn->held = NULL;
	transport_tcp.close(conn);
}

static const struct transport transport_tls = {
	.read = tls_read, .writev = tls_writev, .finish = tls_finish, .close = tls_close
};

static BIO *output_new(struct held *held)
{
	BIO *bio = BIO_new(output_method);

	if (bio) {
		BIO_set_data(bio, held);
		BIO_set_init(bio, 1);
	}
	return bio;
}

static int add_tls(struct connection *conn, SSL_CTX *context)
{
	struct held *held = calloc(1, sizeof(*held));
	BIO *output = held ? output_new(held) : NULL;
	SSL *ssl = output ? SSL_new(context) : NULL;

	if (ssl) {
		SSL_set0_wbio(ssl, output); /* owns it */
		output = NULL;
	}
	if (!ssl || SSL_set_rfd(ssl, conn->fd) != 1) {
		SSL_free(ssl);
		BIO_free(output);
		free(held);
		ERR_clear_error();
		return -ENOMEM;
	}
	held->fd = conn->fd;
	conn->transport = &transport_tls;
	conn->ssl = ssl;
	conn->held = held;
	return 0;
}

int tls_start(struct connection *conn, SSL_CTX *context)
{
	if (add_tls(conn, context))
		return -ENOMEM;
	SSL_set_accept_state(conn->ssl);
	return 0;
}

/* Its certificate has to be of this host; a name is also said to it (SNI). */
int tls_connect(struct connection *conn, SSL_CTX *context, const char *host)
{
	unsigned char address[16];
	bool is_address =
		inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;

	if (add_tls(conn, context))
		return -ENOMEM;
	SSL_set_connect_state(conn->ssl);
	if (is_address ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(conn->ssl), host) == 1
		       : SSL_set1_host(conn->ssl, host) == 1 &&
				 SSL_set_tlsext_host_name(conn->ssl, host) == 1)
		return 0;
	conn->broken = ENOMEM; /* what it is cannot be checked */
	return 0;
}

enum tls_step tls_handshake(struct connection *conn)
{
	if (is_broken(conn))
		return TLS_FAILED;
	if (!send_held(conn))
		return errno == EAGAIN ? TLS_WANTS_WRITE : TLS_FAILED;
	if (SSL_do_handshake(conn->ssl) != 1) {
		outcome(conn, true);
		if (errno != EAGAIN)
			return TLS_FAILED;
		return conn->held->len ? TLS_WANTS_WRITE : TLS_WANTS_READ;
	}
	if (conn->held->len)
		return TLS_WANTS_WRITE;
	/* What came with the last message of the handshake. */
	conn->more = SSL_has_pending(conn->ssl);
	return TLS_DONE;
}
