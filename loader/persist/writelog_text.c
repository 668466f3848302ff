// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rdb.h"
#include "snapshot.h"
#include "store/feed.h"
#include "store/store.h"
#include "util/clock.h"
#include "util/files.h"
#include "writelog_impl.h"

#define PIECE (1U << 20) /* bytes that are written at once */

void writelog_write_text(void)
{
	int ret;

	if ((!writelog.text.len && !writelog.text.failed) || writelog.failed)
		return;
	aof_seal(&writelog.text, &writelog.now.sum);
	pthread_mutex_lock(&writelog.lock);
	writelog.writing_ns = monotonic_ns();
	if (!writelog.unsynced_ns)
		writelog.unsynced_ns = writelog.writing_ns;
	pthread_mutex_unlock(&writelog.lock);
	ret = writelog.text.failed ? -ENOMEM
				   : file_write(writelog.fd, writelog.text.bytes, writelog.text.len,
						writelog.now.size);
	pthread_mutex_lock(&writelog.lock);
	writelog.writing_ns = 0;
	writelog.write_error = ret;
	pthread_mutex_unlock(&writelog.lock);
	writelog.failed = ret;
	if (ret) {
		writelog_note_failure("writing to %s failed: %s", writelog.path, strerror(-ret));
		return;
	}
	writelog.now.size += writelog.text.len;
	writelog.round_bytes += writelog.text.len;
	aof_clear(&writelog.text);
}

void writelog_roll_back(void)
{
	aof_clear(&writelog.text);
	writelog.now = writelog.safe;
	writelog.in_txn = false;
	writelog.failed = ftruncate(writelog.fd, (off_t)writelog.safe.size);
	if (!writelog.failed && fdatasync(writelog.fd)) {
		writelog.failed = true;
		pthread_mutex_lock(&writelog.lock);
		writelog.damages++; /* as in writelog_sync_now() */
		pthread_mutex_unlock(&writelog.lock);
	}
	if (writelog.failed)
		writelog_note_failure("truncating a file in %s failed: %s", writelog.path,
				      strerror(errno));
	writelog.retry_ns = monotonic_ns() + RETRY_NS;
}

static void select_db(unsigned int number)
{
	if (writelog.now.selected == (int)number)
		return;
	aof_command(&writelog.text, 2);
	aof_name(&writelog.text, "SELECT");
	aof_number(&writelog.text, number);
	writelog.now.selected = (int)number;
}

/*
 * SWAPDB leaves no record.  That it was executed shows in the numbers of the databases, and where
 * its command stands among changes of keys makes no difference for what is there in the end: keys
 * keep their stored numbers, and each command is about the number that those have at that point.
 */
static void follow_numbers(void)
{
	uint8_t number[STORE_DATABASES], *told = writelog.now.number;
	unsigned int other;

	store_numbers(writelog.st, number);
	for (unsigned int db = 0; db < STORE_DATABASES; db++) {
		if (told[db] == number[db])
			continue;
		for (other = db + 1; other < STORE_DATABASES && told[other] != number[db];)
			other++;
		if (other == STORE_DATABASES)
			return; /* read while it was changed: the next round has it */
		aof_command(&writelog.text, 3);
		aof_name(&writelog.text, "SWAPDB");
		aof_number(&writelog.text, told[db]);
		aof_number(&writelog.text, told[other]);
		told[other] = told[db];
		told[db] = number[db];
	}
}

/* As Redis reads it. */
static void write_time(uint64_t expire_ms)
{
	aof_number(&writelog.text, expire_ms < INT64_MAX ? expire_ms : INT64_MAX);
}

static void write_put(const struct feed_change *c)
{
	aof_command(&writelog.text, c->expire_ms ? 5 : 3);
	aof_name(&writelog.text, "SET");
	aof_word(&writelog.text, c->key, c->key_len);
	aof_word(&writelog.text, c->value, c->value_len);
	if (!c->expire_ms)
		return;
	aof_name(&writelog.text, "PXAT");
	write_time(c->expire_ms);
}

static void write_expiry(const struct feed_change *c)
{
	aof_command(&writelog.text, c->expire_ms ? 3 : 2);
	aof_name(&writelog.text, c->expire_ms ? "PEXPIREAT" : "PERSIST");
	aof_word(&writelog.text, c->key, c->key_len);
	if (c->expire_ms)
		write_time(c->expire_ms);
}

static void write_change(const struct feed_change *c)
{
	switch (c->what) {
	case XKV_CHANGE_CREATE:
	case XKV_CHANGE_OVERWRITE:
		write_put(c);
		break;
	case XKV_CHANGE_EXPIRY:
		write_expiry(c);
		break;
	case XKV_CHANGE_DELETE:
	case XKV_CHANGE_EVICT:
	case XKV_CHANGE_EXPIRE:
		aof_command(&writelog.text, 2);
		aof_name(&writelog.text, "DEL");
		aof_word(&writelog.text, c->key, c->key_len);
	}
}

/* time() may be some milliseconds behind: what others call the next second. */
static void stamp(void)
{
	struct timespec now;

	if (!writelog.timestamps)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	if (now.tv_sec == writelog.now.stamped)
		return;
	if (writelog.text.len)
		writelog_write_text(); /* a file can be cut off between blocks (restore.h) */
	aof_annotation(&writelog.text, "TS:%lld", (long long)now.tv_sec);
	writelog.now.stamped = now.tv_sec;
}

bool writelog_on_change(void *arg, const struct feed_change *c)
{
	if (!writelog.in_txn) {
		if (c->number != writelog.now.number[c->db])
			follow_numbers();
		stamp();
	}
	select_db(writelog.now.number[c->db]);
	if (c->more && !writelog.in_txn) {
		aof_command(&writelog.text, 1);
		aof_name(&writelog.text, "MULTI");
	}
	write_change(c);
	if (!c->more && writelog.in_txn) {
		aof_command(&writelog.text, 1);
		aof_name(&writelog.text, "EXEC");
	}
	writelog.in_txn = c->more;
	if (writelog.text.len >= PIECE || writelog.text.failed)
		writelog_write_text();
	return !writelog.failed && writelog.round_bytes < PIECE;
}

/* Libraries of functions, all of them, if they have changed. */
static void write_libraries(void)
{
	uint64_t functions;
	size_t len;
	void *dump;

	pthread_mutex_lock(&writelog.lock);
	functions = writelog.functions;
	pthread_mutex_unlock(&writelog.lock);
	if (functions == writelog.now.functions)
		return;
	dump = snapshot_functions(&len);
	if (!dump)
		return;
	aof_command(&writelog.text, len ? 4 : 2);
	aof_name(&writelog.text, "FUNCTION");
	aof_name(&writelog.text, len ? "RESTORE" : "FLUSH");
	if (len) {
		aof_word(&writelog.text, dump, rdb_functions_end(dump, len));
		aof_name(&writelog.text, "FLUSH");
	}
	free(dump);
	writelog.now.functions = functions;
}

/* With what stands before this line the base is of one moment (restore.h). */
static void write_based(void)
{
	uint64_t bases;

	pthread_mutex_lock(&writelog.lock);
	bases = writelog.bases;
	pthread_mutex_unlock(&writelog.lock);
	if (bases != writelog.now.bases)
		aof_annotation(&writelog.text, "XKV:base");
	writelog.now.bases = bases;
}

/*
 * How much of the file the disk has: what of that is not readable later was not lost in a power cut
 * (aof.h).  Once a second, and never alone: that would have to be synced again.
 */
static void write_synced(void)
{
	time_t second = (time_t)(monotonic_ns() / 1000000000);
	uint64_t size;

	pthread_mutex_lock(&writelog.lock);
	size = writelog.synced_size;
	pthread_mutex_unlock(&writelog.lock);
	if (size == writelog.now.synced || second == writelog.now.synced_told)
		return;
	aof_annotation(&writelog.text, "XKV:synced %" PRIu64, size);
	writelog.now.synced = size;
	writelog.now.synced_told = second;
}

void writelog_write_position(uint64_t position)
{
	write_libraries();
	write_based();
	follow_numbers();
	if (writelog.text.len || writelog.round_bytes)
		write_synced();
	if (writelog.text.len || writelog.round_bytes || position != writelog.now.position)
		aof_annotation(&writelog.text, "XKV:at %" PRIu64, position);
	writelog.now.position = position;
}
