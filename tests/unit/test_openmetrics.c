/* SPDX-License-Identifier: BSD-2-Clause */
/* Figures in the formats of Prometheus: each kind in both, escapes, order, and which is wanted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/util/metrics.h"
#include "loader/util/openmetrics.h"

/* The text of some figures, to be freed. */
static char *text_of(enum metrics_format format, const struct label *labels,
		     const struct figure *figures, size_t count)
{
	struct openmetrics *o = openmetrics_new(format);
	size_t len;
	char *text;

	assert_non_null(o);
	openmetrics_of(o)->show(openmetrics_of(o), NULL, labels, figures, count);
	text = openmetrics_end(o, &len);
	assert_non_null(text);
	text = realloc(text, len + 1);
	text[len] = 0;
	return text;
}

static void assert_text(enum metrics_format format, const struct label *labels,
			const struct figure *figures, size_t count, const char *wanted)
{
	char *text = text_of(format, labels, figures, count);

	assert_string_equal(text, wanted);
	free(text);
}

/* clang-format off */
static void test_kinds(void **state)
{
	struct histogram h = {
		.buckets = 2, .bucket = { { 0.001, 1 }, { 0.25, 3 } }, .count = 4, .sum = 1.5,
	};
	const struct {
		struct figure figure;
		const char *text, *open;
	} cases[] = {
		{ { "a", COUNT(UINT64_MAX), "a_total", "h" }, "counter\na_total 18446744073709551615\n", NULL },
		{ { "a", COUNT(1), "a", "h" }, "untyped\na 1\n", "unknown\na 1\n" },
		{ { "a", GAUGE(-1), "a", "h" }, "gauge\na -1\n", NULL },
		{ { "a", BYTES(5), "a_bytes", "h" }, "gauge\na_bytes 5\n", "gauge\n# UNIT a_bytes bytes\na_bytes 5\n" },
		{ { "a", BYTES(5), "bytes", "h" }, "gauge\nbytes 5\n", NULL },
		{ { "a", REAL(0.1, 2), "a", "h" }, "gauge\na 0.1\n", NULL },
		{ { "a", REAL(NAN, 2), "a", "h" }, "gauge\na NaN\n", NULL },
		{ { "a", REAL(-INFINITY, 2), "a", "h" }, "gauge\na -Inf\n", NULL },
		{ { "a", CPU(1.25), "a_total", "h" }, "counter\na_total 1.25\n", NULL },
		{ { "a", NSEC(10000000000000001), "a_seconds_total", "h" },
		  "counter\na_seconds_total 10000000.000000001\n",
		  "counter\n# UNIT a_seconds seconds\na_seconds_total 10000000.000000001\n" },
		{ { "a", MSEC(50), "a_seconds", "h" }, "gauge\na_seconds 0.050\n",
		  "gauge\n# UNIT a_seconds seconds\na_seconds 0.050\n" },
		{ { "a", OK(true), "a", "h" }, "gauge\na 1\n", NULL },
		{ { NULL, LABELS, "a_info", "h" }, "gauge\na_info 1\n", "info\na_info 1\n" },
		{ { NULL, HISTOGRAM(&h), "a", "h" },
		  "histogram\na_bucket{le=\"0.001\"} 1\na_bucket{le=\"0.25\"} 3\n"
		  "a_bucket{le=\"+Inf\"} 4\na_sum 1.5\na_count 4\n", NULL },
	};
	char wanted[512];

	for (unsigned int i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *metric = cases[i].figure.metric;
		int len = (int)strlen(metric), cut = len;

		snprintf(wanted, sizeof(wanted), "# HELP %s h\n# TYPE %s %s", metric, metric,
			 cases[i].text);
		assert_text(METRICS_TEXT, NULL, &cases[i].figure, 1, wanted);
		if (strstr(cases[i].text, "counter"))
			cut = len - (int)strlen("_total");
		if (cases[i].open && strstr(cases[i].open, "info\n"))
			cut = len - (int)strlen("_info");
		snprintf(wanted, sizeof(wanted), "# HELP %.*s h\n# TYPE %.*s %s# EOF\n", cut,
			 metric, cut, metric, cases[i].open ?: cases[i].text);
		assert_text(METRICS_OPENMETRICS, NULL, &cases[i].figure, 1, wanted);
	}
}

/* What is for INFO only is not there. */
static void test_left_out(void **state)
{
	const struct figure figures[] = {
		{ "a", TEXT("x") }, { "b", GAUGE(1) }, { "c", NONE("c") }, { "d", PERCENT(1, 2) },
	};

	assert_text(METRICS_TEXT, NULL, figures, 4,
		    "# HELP c always 0: xkvd has no such thing\n# TYPE c gauge\nc 0\n");
	assert_text(METRICS_OPENMETRICS, NULL, figures, 2, "# EOF\n");
}
/* clang-format on */

static void test_labels(void **state)
{
	const struct label labels[] = { { "x", "\\ \" \n \t\x80\xff~" }, { "y", "" }, {} };
	const struct figure figure[] = { { NULL, GAUGE(7), "a", "h" } };
	struct histogram h = { .buckets = 1, .bucket = { { 1, 0 } } };
	const struct figure times[] = { { NULL, HISTOGRAM(&h), "a", "h" } };
	const struct label one[] = { { "x", "v" }, {} };

	assert_text(METRICS_TEXT, labels, figure, 1,
		    "# HELP a h\n# TYPE a gauge\n"
		    "a{x=\"\\\\ \\\" \\n \\\\x09\\\\x80\\\\xff~\",y=\"\"} 7\n");
	assert_text(METRICS_TEXT, one, times, 1,
		    "# HELP a h\n# TYPE a histogram\na_bucket{x=\"v\",le=\"1\"} 0\n"
		    "a_bucket{x=\"v\",le=\"+Inf\"} 0\na_sum{x=\"v\"} 0\na_count{x=\"v\"} 0\n");
}

/* Samples of a metric stand together, whenever they come, and however many metrics there are. */
static void test_order(void **state)
{
	struct openmetrics *o = openmetrics_new(METRICS_TEXT);
	static char names[200][16];
	char value[16], line[64], *text, *at, *next;
	size_t len;

	for (unsigned int i = 0; i < 3; i++)
		for (unsigned int n = 0; n < 200; n++) {
			const struct label labels[] = { { "i", value }, {} };
			const struct figure figure[] = { { NULL, GAUGE(n), names[n], "h" } };

			snprintf(value, sizeof(value), "%u", i);
			snprintf(names[n], sizeof(names[n]), "name_%u", n);
			metrics_show(openmetrics_of(o), NULL, labels, figure);
		}
	text = openmetrics_end(o, &len);
	text = realloc(text, len + 1);
	text[len] = 0;
	at = text;
	for (unsigned int n = 0; n < 200; n++) {
		at = strchr(strchr(at, '\n') + 1, '\n') + 1;
		for (unsigned int i = 0; i < 3; i++, at = next + 1) {
			next = strchr(at, '\n');
			snprintf(line, sizeof(line), "name_%u{i=\"%u\"} %u", n, i, n);
			assert_int_equal((size_t)(next - at), strlen(line));
			assert_memory_equal(at, line, strlen(line));
		}
	}
	assert_ptr_equal(at, text + len);
	free(text);
}

static void test_accept(void **state)
{
	static const struct {
		const char *accept;
		enum metrics_format format;
	} cases[] = {
		{ NULL, METRICS_TEXT },
		{ "", METRICS_TEXT },
		{ "*/*", METRICS_TEXT },
		{ "text/plain", METRICS_TEXT },
		{ "application/openmetrics-text", METRICS_OPENMETRICS },
		{ "Application/OpenMetrics-Text ; version=1.0.0", METRICS_OPENMETRICS },
		{ "application/openmetrics-textual", METRICS_TEXT },
		{ "application/openmetrics-text;q=0", METRICS_TEXT },
		{ "application/openmetrics-text;q=0.2, text/plain;q=0.9", METRICS_TEXT },
		/* what Prometheus 2.42 and 3 send */
		{ "application/openmetrics-text;version=1.0.0,"
		  "application/openmetrics-text;version=0.0.1;q=0.75,"
		  "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
		  METRICS_OPENMETRICS },
		{ "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
		  "application/openmetrics-text;version=0.0.1;q=0.4,"
		  "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
		  "text/plain;version=0.0.4;q=0.2,/;q=0.1",
		  METRICS_OPENMETRICS },
		/* garbage */
		{ ",,,;;;q=,", METRICS_TEXT },
		{ ";q", METRICS_TEXT },
		{ "application/openmetrics-text;q", METRICS_OPENMETRICS },
		{ "application/openmetrics-text;q=x", METRICS_TEXT },
		{ "application/openmetrics-text;;;q=nan", METRICS_TEXT },
	};

	for (unsigned int i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (openmetrics_accepted(cases[i].accept) != cases[i].format)
			fail_msg("%s", cases[i].accept ?: "(none)");
	assert_non_null(strstr(openmetrics_type(METRICS_TEXT), "version=0.0.4"));
	assert_non_null(strstr(openmetrics_type(METRICS_OPENMETRICS), "version=1.0.0"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds),  cmocka_unit_test(test_left_out),
		cmocka_unit_test(test_labels), cmocka_unit_test(test_order),
		cmocka_unit_test(test_accept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
