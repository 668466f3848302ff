// SPDX-License-Identifier: BSD-2-Clause
/*
 * xkv-exchange: sends the same request over many connections to a port of this machine, over each
 * again when it is answered, and prints how often it was.  For requests that redis-benchmark does
 * not make, MULTI ... EXEC for instance.
 *
 *	xkv-exchange PORT CONNECTIONS SECONDS KEYS <request
 *
 * Each "############" in the request becomes another number below KEYS, with leading zeros.  All
 * replies must be as long as the first: it ends when nothing comes for QUIET_MS.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define QUIET_MS      200
#define FIRST_MS      5000 /* until something comes at all */
#define REQUEST_BYTES 65536
#define EVENTS	      64
#define BLANK	      "############"
#define BLANK_BYTES   (sizeof(BLANK) - 1)

struct connection {
	int fd;
	size_t got; /* bytes of the reply, so far */
};

static char request[REQUEST_BYTES + 1], reply[1 << 20];
static size_t request_bytes;
static unsigned long keys;

static unsigned long number(const char *text, unsigned long most)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (*end || !n || n > most)
		errx(2, "%s: a number from 1 to %lu is wanted", text, most);
	return n;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int connect_to(unsigned long port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof(at)) ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		err(1, "port %lu", port);
	return fd;
}

/* A connection has one request at a time under way, so its socket takes it. */
static void send_request(int fd)
{
	static char filled[REQUEST_BYTES + 1];
	static uint64_t state = 1;
	char digits[BLANK_BYTES + 1];
	ssize_t n;

	memcpy(filled, request, request_bytes + 1);
	for (char *at = filled; (at = strstr(at, BLANK)); at += BLANK_BYTES) {
		state = state * 6364136223846793005U + 1442695040888963407U; /* Knuth's MMIX */
		snprintf(digits, sizeof(digits), "%012lu", (unsigned long)(state >> 33) % keys);
		memcpy(at, digits, BLANK_BYTES);
	}
	n = write(fd, filled, request_bytes);
	if (n != (ssize_t)request_bytes)
		errx(1, "%zd of %zu bytes were sent", n, request_bytes);
}

static size_t receive(int fd)
{
	ssize_t n = read(fd, reply, sizeof(reply));

	if (n <= 0)
		errx(1, "the server has closed a connection: %s", n ? strerror(errno) : "no error");
	return (size_t)n;
}

/* Whether the kernel or the server has the request tells who is late. */
static void no_reply(int fd)
{
	int unsent = 0;

	ioctl(fd, SIOCOUTQ, &unsent);
	errx(1, "no reply in %d ms; of the request %zu bytes have arrived", FIRST_MS,
	     request_bytes - (size_t)unsent);
}

static size_t length_of_reply(int fd)
{
	struct pollfd readable = { .fd = fd, .events = POLLIN };
	size_t bytes = 0;

	send_request(fd);
	while (poll(&readable, 1, bytes ? QUIET_MS : FIRST_MS) > 0)
		bytes += receive(fd);
	if (!bytes)
		no_reply(fd);
	return bytes;
}

/* Sends the next request if the reply is complete: is it? */
static bool serve(struct connection *c, size_t length)
{
	c->got += receive(c->fd);
	if (c->got > length)
		errx(1, "a reply of %zu bytes, where the first one had %zu", c->got, length);
	if (c->got < length)
		return false;
	c->got = 0;
	send_request(c->fd);
	return true;
}

static unsigned long exchange(struct connection *c, unsigned long count, double seconds)
{
	struct epoll_event event[EVENTS] = { 0 };
	size_t length = length_of_reply(c[0].fd);
	double end = now() + seconds;
	int ready = epoll_create1(EPOLL_CLOEXEC), n;
	unsigned long done = 0;

	for (unsigned long i = 0; i < count; i++) {
		event[0] = (struct epoll_event){ .events = EPOLLIN, .data.ptr = &c[i] };
		if (ready < 0 || epoll_ctl(ready, EPOLL_CTL_ADD, c[i].fd, &event[0]))
			err(1, "epoll");
		send_request(c[i].fd);
	}
	while (now() < end) {
		n = epoll_wait(ready, event, EVENTS, QUIET_MS);
		for (int i = 0; i < n; i++)
			done += serve(event[i].data.ptr, length);
	}
	close(ready);
	return done;
}

int main(int argc, char *argv[])
{
	unsigned long port, count, seconds;
	struct connection *c;

	if (argc != 5)
		errx(2, "usage: xkv-exchange PORT CONNECTIONS SECONDS KEYS <request");
	port = number(argv[1], 65535);
	count = number(argv[2], 10000);
	seconds = number(argv[3], 3600);
	keys = number(argv[4], 1000000000);
	request_bytes = fread(request, 1, REQUEST_BYTES, stdin);
	if (!request_bytes || !feof(stdin) || strlen(request) != request_bytes)
		errx(2, "a request of up to %d bytes, none of them zero, is wanted as input",
		     REQUEST_BYTES - 1);
	c = calloc(count, sizeof(*c));
	if (!c)
		err(1, "connections");
	for (unsigned long i = 0; i < count; i++)
		c[i].fd = connect_to(port);
	printf("%lu\n", exchange(c, count, (double)seconds));
	for (unsigned long i = 0; i < count; i++)
		close(c[i].fd);
	free(c);
	return 0;
}
