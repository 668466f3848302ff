// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 4 */
/* tests/run: firm */
/*
 * What reads: TTL, TOUCH, SCAN and requests of many GETs, through both front ends, and the BPF
 * iterators that print entries.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "ask.h"
#include "fixture.h"
#include "packet.h"
#include "tracing.h"
#include "xdpbed.h"

static void test_ttl(void **state)
{
	static const uint8_t opcodes[] = { XKV_OP_TTL, XKV_OP_TOUCH };
	struct operation op;
	struct reply r;

	put_bytes("a", 1, pattern(0), 1400, 0);
	put_bytes("b", 1, "1", 1, store_now_ms(bed.st) + 50000);
	put_bytes("c", 1, "1", 1, 1000);
	put_bytes("d", 1, zeros, XKV_VALUE_MAX, 0);
	for (unsigned int i = 0; i < 4; i++) {
		enum frontend frontend = i % FRONTENDS;

		op = op_on(opcodes[i / 2], "a", 1);
		ask_op(frontend, &op, &r);
		assert_int_equal(r.result[0].status, XKV_OK);
		assert_true(!r.value[0] && !r.result[0].value_len && !r.result[0].ttl);
		assert_true(r.result[0].version == entry_of("a", 1).version);
		op.key = "b";
		ask_op(frontend, &op, &r);
		assert_int_equal(r.result[0].status, XKV_OK);
		assert_in_range(r.result[0].ttl, 1, 50000);
		op.key = "d";
		ask_op(frontend, &op, &r);
		assert_int_equal(r.result[0].status, XKV_OK);
		for (op.key = "c"; op.key; op.key = !strcmp(op.key, "c") ? "x" : NULL) {
			for (bed.c->miss_reply = 0; bed.c->miss_reply < 2; bed.c->miss_reply++) {
				ask_op(frontend, &op, &r);
				refused(&r, XKV_MISS);
				assert_int_equal(r.passed,
						 frontend == DRIVER && !bed.c->miss_reply);
			}
		}
	}
}

/* What an operation leaves in the entry's access. */
static uint16_t access_after(const struct operation *op, uint16_t before)
{
	struct xkv_slot *slot = bed_slot(&bed, op->key, op->key_len);
	struct reply r;

	assert_non_null(slot);
	slot->access = before;
	ask_op(DRIVER, op, &r);
	assert_false(r.passed);
	slot = bed_slot(&bed, op->key, op->key_len);
	assert_non_null(slot);
	return slot->access;
}

/* TTL leaves no trace; everything else that reads or writes is an access. */
static void test_access(void **state)
{
	static const enum xkv_track tracks[] = { XKV_TRACK_TIME, XKV_TRACK_FREQUENCY };
	struct operation get = op_on(XKV_OP_GET, "k1", 2), ttl = op_on(XKV_OP_TTL, "k1", 2),
			 touch = op_on(XKV_OP_TOUCH, "k1", 2), add = incr("k1", 2, 1),
			 join = append("k1", 2, "2", 1);
	struct payload p = scan("k1", 1);
	uint16_t before = 0x1203, used;
	struct reply r;

	put_text("k1", "41");
	bed.c->access = 0x4448;
	bed.c->track = XKV_TRACK_NOTHING;
	assert_int_equal(access_after(&get, before), before);
	assert_int_equal(access_after(&touch, before), before);
	for (int i = 0; i < 2; i++) {
		bed.c->track = tracks[i];
		used = access_after(&get, before);
		assert_int_not_equal(used, before);
		assert_int_equal(access_after(&touch, before), used);
		assert_int_equal(access_after(&add, before), used);
		assert_int_equal(access_after(&join, before), used);
		assert_int_equal(access_after(&ttl, before), before);
		bed_slot(&bed, "k1", 2)->access = before;
		ask(DRIVER, &p, &r);
		assert_int_equal(bed_slot(&bed, "k1", 2)->access, used);
	}
}

/* A write that moves the entry to another slot is an access as much as one in place. */
static void test_access_moved(void **state)
{
	struct operation set = op_on(XKV_OP_SET, "k1", 2), join = append("k1", 2, pattern(0), 500);

	put_bytes("big", 3, pattern(0), 1000, 0); /* so that there are slots of that size */
	put_bytes("mid", 3, pattern(0), 502, 0);
	put_text("k1", "41");
	bed.c->access = 777;
	bed.c->track = XKV_TRACK_TIME;
	assert_int_equal(access_after(&join, 5), 777);
	set.value = pattern(0);
	set.value_len = 1000;
	assert_int_equal(access_after(&set, 5), 777);
}

/* ---- SCAN ------------------------------------------------------------------ */

/* The key that follows, as a person would count. */
static void count_up(char *key)
{
	size_t at = strlen(key);

	while (at && key[at - 1] >= '0' && key[at - 1] <= '9') {
		if (key[--at] != '9') {
			key[at]++;
			return;
		}
		key[at] = '0';
	}
	*key = 0; /* was the last */
}

/* Is a result of several what GET would say of the key alone? */
static void check_read(const struct reply *r, unsigned int i, uint8_t opcode, const char *key)
{
	struct store_entry e = { .version = 0 };
	int ret = store_get(bed.ctx, key, strlen(key), &e);

	assert_int_equal(r->result[i].opcode, opcode);
	assert_int_equal(r->result[i].status, ret ? XKV_MISS : XKV_OK);
	assert_true(r->result[i].version == (ret ? 0 : e.version));
	assert_int_equal(!r->value[i], !!ret);
	if (ret)
		return;
	assert_int_equal(!r->result[i].ttl, !e.expire_ms);
	assert_int_equal(r->result[i].value_len, e.value_len);
	assert_memory_equal(r->value[i], e.value, e.value_len);
}

static void check_scanned(const struct reply *r, unsigned int i, const char *key)
{
	check_read(r, i, XKV_OP_SCAN, key);
}

/* Reads `keys` keys as a client does: goes on behind what was answered.  How many there were. */
static unsigned int scan_all(enum frontend frontend, const char *first, unsigned int keys,
			     unsigned int *requests)
{
	unsigned int read = 0, ask_for;
	char key[XKV_KEY_MAX + 1];
	struct payload p;
	struct reply r;

	snprintf(key, sizeof(key), "%s", first);
	for (*requests = 0; *key && read < keys; ++*requests) {
		ask_for = keys - read > XKV_SCAN_MAX ? XKV_SCAN_MAX : keys - read;
		p = scan(key, ask_for);
		ask(frontend, &p, &r);
		assert_in_range(r.count, 1, ask_for);
		for (unsigned int i = 0; i < r.count; i++) {
			assert_true(*key);
			check_scanned(&r, i, key);
			count_up(key);
		}
		read += r.count;
	}
	return read;
}

static void test_scan(void **state)
{
	unsigned int requests;
	char key[32];

	for (int i = 0; i < 300; i++) {
		snprintf(key, sizeof(key), "item:%04d", i);
		if (i % 10 != 7)
			put_bytes(key, strlen(key), pattern(0), (size_t)i % 70,
				  i % 3 ? 0 : store_now_ms(bed.st) + 1000000);
	}
	put_bytes("item:0017", 9, "gone", 4, 1000);
	for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
		for (bed.c->miss_reply = 0; bed.c->miss_reply < 2; bed.c->miss_reply++) {
			assert_int_equal(scan_all(frontend, "item:0000", 300, &requests), 300);
			assert_in_range(requests, 10, 100);
			assert_int_equal(scan_all(frontend, "item:0295", 10, &requests), 10);
			assert_int_equal(scan_all(frontend, "item:0008", 4, &requests), 4);
			/* the first is not there: xkvd answers all, in one go */
			assert_int_equal(scan_all(frontend, "item:0297", 20, &requests), 20);
			assert_int_equal(requests, 1);
		}
	}
}

/* Where the counting ends. */
static void test_scan_end(void **state)
{
	char nines[XKV_KEY_MAX + 1];
	unsigned int requests;

	bed.c->miss_reply = 1;
	for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
		assert_int_equal(scan_all(frontend, "k8", 100, &requests), 2);
		assert_int_equal(scan_all(frontend, "k9", 100, &requests), 1);
		assert_int_equal(scan_all(frontend, "k09", 100, &requests), 91);
		assert_int_equal(scan_all(frontend, "k98", 100, &requests), 2);
		assert_int_equal(scan_all(frontend, "1k7", 100, &requests), 3);
		assert_int_equal(scan_all(frontend, "9", 100, &requests), 1);
		assert_int_equal(scan_all(frontend, "0", 100, &requests), 10);
		assert_int_equal(scan_all(frontend, "99999998", 100, &requests), 2);
		assert_int_equal(scan_all(frontend, "0999999999999999998", 4, &requests), 4);
		for (size_t len = 1; len <= 32; len++) {
			memset(nines, '9', len);
			nines[len] = 0;
			assert_int_equal(scan_all(frontend, nines, 3, &requests), 1);
			nines[0] = '8';
			assert_int_equal(scan_all(frontend, nines, 3, &requests), len > 1 ? 3 : 2);
		}
	}
}

/* Carries of all lengths, in keys of all lengths. */
static void test_scan_keys(void **state)
{
	char key[XKV_KEY_MAX + 1];
	unsigned int requests;

	bed.c->miss_reply = 1;
	for (size_t len = 2; len <= XKV_KEY_MAX; len++) {
		size_t digits = 1 + len % (len < 24 ? len - 1 : 23);

		memset(key, 'k', len);
		memset(key + len - digits, '9', digits);
		key[len] = 0;
		key[len - digits] = '4';
		put_bytes(key, len, pattern(0), len % 30, 0);
		key[len - 1] = '7';
		assert_int_equal(scan_all(len % FRONTENDS, key, 5, &requests), digits > 1 ? 5 : 3);
	}
}

/* What fits a datagram, byte for byte; the reply is as full as it can be. */
static void test_scan_full(void **state)
{
	struct payload p;
	struct reply r;
	char key[8];

	for (size_t len = 0; len < 1500; len = len * 5 / 4 + 1) {
		size_t each = 24 + XKV_PADDED(len), fit = (DATAGRAM - 16) / each;

		for (int i = 0; i < 64; i++) {
			snprintf(key, sizeof(key), "k%02d", i);
			put_bytes(key, 3, pattern(0), len, 0);
		}
		for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
			p = scan("k00", 64);
			ask(frontend, &p, &r);
			if (fit) {
				assert_int_equal(r.count, fit < 60 ? fit : 60);
				assert_false(r.passed);
			} else { /* none does: its length, and the others in the same way */
				assert_int_equal(r.count, 60);
				assert_int_equal(r.result[0].status, XKV_TOO_LARGE);
				assert_int_equal(r.result[0].value_len, len);
			}
		}
	}
}

/*
 * Padding takes the place where the next keys are made: as many fit the reply as without, whatever
 * their length.
 */
static void test_scan_padded(void **state)
{
	char key[XKV_KEY_MAX + 1];
	struct payload p;
	struct reply r;

	for (size_t len = 8; len <= XKV_KEY_MAX; len += len < 248 ? 8 : 2) {
		memset(key, 'k', len);
		key[len] = 0;
		for (int i = 0; i < 100; i++) {
			snprintf(key + len - 2, 3, "%02d", i);
			put_bytes(key, len, pattern(i % 7), 8, 0);
		}
		memcpy(key + len - 2, "00", 2);
		for (size_t pad = 0; pad <= DATAGRAM - 16 - 24 - XKV_PADDED(len); pad += 8)
			for (int again = 0; again < 2; again++) { /* knowing how many fit */
				p = scan(key, 100);
				request_pad(&p, pad, 0xff);
				ask(DRIVER, &p, &r);
				assert_false(r.passed);
				assert_int_equal(r.count, (DATAGRAM - 16) / 32);
				for (unsigned int i = 0; i < r.count; i++) {
					snprintf(key + len - 2, 3, "%02d", i);
					check_read(&r, i, XKV_OP_SCAN, key);
				}
				memcpy(key + len - 2, "00", 2);
			}
	}
}

/* Hits and misses are counted key by key. */
static void test_scan_counters(void **state)
{
	struct payload p = scan("k1", 5);
	uint64_t hits, misses;
	struct reply r;

	bed.c->miss_reply = 1;
	put_text("k1", "a");
	put_text("k3", "c");
	hits = count_of(XKV_C_get_hits);
	misses = count_of(XKV_C_get_misses);
	ask(DRIVER, &p, &r);
	assert_int_equal(r.count, 5);
	assert_int_equal(count_of(XKV_C_get_hits) - hits, 2);
	assert_int_equal(count_of(XKV_C_get_misses) - misses, 3);
}

/* Asks for n of the keys of test_gets() at once.  The key after i is i + step. */
static void gets(unsigned int first, unsigned int step, unsigned int n)
{
	size_t len = sizeof(struct xkv_hdr);
	struct operation op[RESULTS_MAX];
	char key[RESULTS_MAX][16];
	unsigned int missing = 0;
	struct payload p;
	struct reply r;

	begin(&p, next_id++, 0);
	for (unsigned int i = 0; i < n; i++) {
		struct store_entry e = { .version = 0 };

		snprintf(key[i], sizeof(key[i]), "gets:%u", (first + i * step) % 100);
		op[i] = op_on(XKV_OP_GET, key[i], strlen(key[i]));
		request_add(&p, &op[i]);
		missing += !!store_get(bed.ctx, key[i], strlen(key[i]), &e);
		len += 24 + XKV_PADDED(e.value_len);
	}
	ask(DRIVER, &p, &r);
	for (unsigned int i = 0; i < r.count; i++)
		check_read(&r, i, XKV_OP_GET, key[i]);
	if (len <= DATAGRAM && (!missing || bed.c->miss_reply || r.passed))
		assert_int_equal(r.count, n);
	assert_true(r.count > 0);
	assert_true(r.passed <= (missing && !bed.c->miss_reply));
}

/*
 * GETs whose keys are looked for together, with keys that collide and without, there and not there.
 */
static void test_gets(void **state)
{
	static const uint64_t mask[] = { ~0ULL, 0xffULL << 40 | 1, 3 };
	char key[16];

	for (size_t m = 0; m < sizeof(mask) / sizeof(*mask); m++) {
		bed.c->fingerprint_mask = mask[m];
		for (unsigned int i = 0; i < 100; i++) {
			snprintf(key, sizeof(key), "gets:%u", i);
			if (i % 9 != 8)
				put_bytes(key, strlen(key), pattern(i % 7), i * 31 % 250,
					  i % 5 ? 0 : store_now_ms(bed.st) + 1000000);
		}
		put_bytes("gets:17", 7, "gone", 4, 1000);
		for (bed.c->miss_reply = 0; bed.c->miss_reply < 2; bed.c->miss_reply++)
			for (unsigned int first = 0; first < 100; first++)
				for (unsigned int n = 1; n < 24; n++)
					gets(first, 1 + n % 7, n);
		for (unsigned int i = 0; i < 100; i++) {
			snprintf(key, sizeof(key), "gets:%u", i);
			/* what has expired cannot be deleted */
			put_bytes(key, strlen(key), "", 0, 0);
			store_delete(bed.ctx, key, strlen(key), NULL);
		}
	}
	bed.c->fingerprint_mask = ~0ULL;
}

/* SCANs and others in one datagram: what is answered is right, and nothing behind it was done. */
static void test_scan_batch(void **state)
{
	struct operation set = op_on(XKV_OP_SET, "done", 4);
	struct payload p;
	struct reply r;
	char key[8];

	for (int i = 0; i < 10; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		put_bytes(key, 2, pattern(0), 200, 0);
	}
	p = scan("k2", 2);
	request_add(&p, &(struct operation){ .opcode = XKV_OP_SCAN, TEXT("k8") });
	p.byte[p.len - 32 + 3] = 9; /* two of them exist */
	request_add(&p, &set);
	ask(DRIVER, &p, &r);
	assert_int_equal(r.count, 5);
	check_scanned(&r, 0, "k2");
	check_scanned(&r, 1, "k3");
	check_scanned(&r, 2, "k8");
	check_scanned(&r, 3, "k9");
	assert_int_equal(r.result[4].opcode, XKV_OP_SET);
	holds_text("done", "");
	store_delete(bed.ctx, "done", 4, NULL);
	p = scan("k0", 8); /* six fit */
	request_add(&p, &set);
	ask(DRIVER, &p, &r);
	assert_int_equal(r.count, 6);
	assert_int_equal(store_get(bed.ctx, "done", 4, &(struct store_entry){ 0 }), -ENOENT);
}

/* ---- a look inside ----------------------------------------------------------- */

static void skip_if_none_prints(void)
{
	if (!kernel_traces()) {
		puts("SKIP: the kernel refuses programs that trace");
		skip();
	}
}

/* All that a file beside the maps prints. */
static char *printed(const char *name)
{
	char path[200], *text = NULL, part[5000];
	size_t len = 0, got;
	FILE *to = open_memstream(&text, &len), *from;

	snprintf(path, sizeof(path), "%s/%s", bed.pin_dir, name);
	from = fopen(path, "r");
	assert_non_null(from);
	assert_non_null(to);
	while ((got = fread(part, 1, sizeof(part), from)))
		fwrite(part, 1, got, to);
	assert_false(ferror(from));
	fclose(from);
	fclose(to);
	return text;
}

/* Prints `dump`, and expects these lines, but for the number of the version. */
static void dumps(const char *want)
{
	char *text = printed("dump"), *to = text;

	for (const char *from = text; (*to = *from++);) {
		if (to - text >= 11 && !memcmp(to - 10, "\"version\":\"", 11))
			from += strspn(from, "0123456789");
		to++;
	}
	assert_string_equal(text, want);
	free(text);
}

#define META ",\"ttl_ms\":null,\"version\":\"\"}\n"

static void dump_is(const char *key, size_t key_len, const char *value, size_t len,
		    const char *want)
{
	assert_int_equal(store_flush(bed.ctx), 0);
	put_bytes(key, key_len, value, len, 0);
	dumps(want);
}

/* Text as it is, UTF-8 included; all else in base64. */
static void test_dump(void **state)
{
	char *text;

	skip_if_none_prints();
	dumps("");
	dump_is("k", 1, "v", 1, "{\"key\":\"k\",\"value\":\"v\",\"value_len\":1" META);
	dump_is("k", 1, "", 0, "{\"key\":\"k\",\"value\":\"\",\"value_len\":0" META);
	dump_is("\"\\\n", 3, "\r\tx", 3,
		"{\"key\":\"\\\"\\\\\\n\",\"value\":\"\\r\\tx\",\"value_len\":3" META);
	dump_is("gr\xc3\xbc\xc3\x9f", 6, "\xe2\x82\xac\xf0\x9f\x98\x80", 7,
		"{\"key\":\"gr\xc3\xbc\xc3\x9f\",\"value\":\"\xe2\x82\xac\xf0\x9f\x98\x80\","
		"\"value_len\":7" META);
	dump_is("\xff", 1, "\0", 1,
		"{\"key\":{\"base64\":\"/w==\"},\"value\":{\"base64\":\"AA==\"},"
		"\"value_len\":1" META);
	dump_is("a\x01", 2, "ab\xc3", 3,
		"{\"key\":{\"base64\":\"YQE=\"},\"value\":{\"base64\":\"YWLD\"},"
		"\"value_len\":3" META);
	/* too long, a surrogate, beyond the last character */
	dump_is("\xc0\x80", 2, "\xed\xa0\x80", 3,
		"{\"key\":{\"base64\":\"wIA=\"},\"value\":{\"base64\":\"7aCA\"},"
		"\"value_len\":3" META);
	dump_is("\xe0\x80\x80", 3, "\xf4\x90\x80\x80", 4,
		"{\"key\":{\"base64\":\"4ICA\"},\"value\":{\"base64\":\"9JCAgA==\"},"
		"\"value_len\":4" META);
	put_bytes("k", 1, "v", 1, store_now_ms(bed.st) + 99000);
	text = printed("dump");
	assert_non_null(strstr(text, "\"value\":\"v\",\"value_len\":1,\"ttl_ms\":9"));
	free(text);
	pass_time(100000);
	text = printed("dump");
	assert_null(strstr(text, "\"v\""));
	free(text);
}

/* What a datagram holds is whole, and of all else that much. */
static void test_dump_long(void **state)
{
	static const size_t lens[] = { 1471, 1472, 1473, 5000, XKV_VALUE_MAX };
	static char value[XKV_VALUE_MAX];
	char key[250], want[4000];
	int len;

	skip_if_none_prints();
	memset(value, 'x', sizeof(value));
	memset(key, 'k', sizeof(key));
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		len = lens[i] < 1472 ? (int)lens[i] : 1472;
		snprintf(want, sizeof(want),
			 "{\"key\":\"%.*s\",\"value\":\"%.*s\",\"value_len\":%zu%s" META, 250, key,
			 len, value, lens[i], lens[i] > 1472 ? ",\"value_truncated\":true" : "");
		dump_is(key, 250, value, lens[i], want);
	}
}

static unsigned int lines_of(const char *text, const char *with)
{
	unsigned int n = 0;

	for (; (text = strstr(text, with)); text++)
		n++;
	return n;
}

/*
 * A chain of which not all fits what the kernel keeps for one: no error, and the rest is counted.
 */
static void test_dump_of_a_long_chain(void **state)
{
	static char value[1400];
	char key[250], *text;
	unsigned int left;

	skip_if_none_prints();
	memset(key, 0xff, sizeof(key));
	memset(value, '"', sizeof(value));
	bed.c->fingerprint_mask = 0xff0000000000ULL; /* one bucket */
	for (int i = 0; i < 100; i++) {
		key[0] = (char)i;
		put_bytes(key, sizeof(key), value, sizeof(value), 0);
	}
	text = printed("dump");
	assert_true(sscanf(strstr(text, "{\"left_out\":"), "{\"left_out\":%u}", &left) == 1);
	assert_int_equal(lines_of(text, "\"key\":") + left, 100);
	assert_true(left < 95 && lines_of(text, "value_truncated") > 0);
	free(text);
	text = printed("entries");
	assert_true(sscanf(strstr(text, "\n("), "\n(%u more", &left) == 1);
	assert_int_equal(lines_of(text, "1400 bytes") + left, 100);
	free(text);
	assert_int_equal(store_flush(bed.ctx), 0);
	bed.c->fingerprint_mask = ~0ULL;
}

/*
 * What a reader may find that stands on a bucket which has left its chain, and is something else by
 * now: references to entries of other buckets, to slots that are free, to nothing.
 */
static void test_dump_shows_no_ghosts(void **state)
{
	struct xkv_bucket *own, *other;
	uint64_t entry = 0;
	char *text;

	skip_if_none_prints();
	put_text("key", "value");
	own = bed_bucket(&bed, "key", 3);
	other = &bed.index[(own - bed.index + 1) & bed.c->bucket_mask];
	for (int way = 0; way < XKV_WAYS; way++)
		entry |= own->entry[way];
	other->entry[0] = entry;
	other->entry[1] = entry & XKV_REF_MASK;
	other->entry[2] = ~0ULL;
	own->entry[6] = entry ^ 1ULL << 63;
	for (int json = 0; json < 2; json++) {
		text = printed(json ? "dump" : "entries");
		assert_int_equal(lines_of(text, "\n"), 1);
		free(text);
	}
	memset(other->entry, 0, sizeof(other->entry));
	own->entry[6] = 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_ttl),
		CASE(test_access),
		CASE(test_access_moved),
		CASE(test_scan),
		CASE(test_scan_end),
		CASE(test_scan_keys),
		CASE(test_scan_full),
		CASE(test_scan_padded),
		CASE(test_scan_counters),
		CASE(test_scan_batch),
		CASE(test_gets),
		CASE(test_dump),
		CASE(test_dump_long),
		CASE(test_dump_of_a_long_chain),
		CASE(test_dump_shows_no_ghosts),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("reads", tests, ask_begin, close_bed);
}
