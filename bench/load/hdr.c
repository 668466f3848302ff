// SPDX-License-Identifier: BSD-2-Clause
/*
 * See hdr.h.  The lines are those of Histogram.outputPercentileDistribution() with five
 * steps to each half of the distance to 100 %, which is what the plotter's pages expect.
 */
#include "hdr.h"

#include <math.h>
#include <stdint.h>

#include "hist.h"

#define STEPS_PER_HALF 5
#define US	       1000.0

/* The step to the next percentile, which is halved with each half of the distance to 100. */
static double step(double percent)
{
	return 100 / (STEPS_PER_HALF * pow(2, floor(log2(100 / (100 - percent))) + 1));
}

static double top_us(const struct hist *h, unsigned int bucket)
{
	uint64_t top = hist_bucket_max(bucket);

	return (top < h->max ? top : h->max) / US;
}

/* From the middle of the buckets. */
static double deviation_us(const struct hist *h)
{
	double mean = hist_mean(h), sum = 0;

	for (unsigned int i = 0; i < HIST_BUCKETS; i++) {
		double low = i ? hist_bucket_max(i - 1) + 1 : 0;
		double off = (low + hist_bucket_max(i)) / 2 - mean;

		sum += h->count[i] * off * off;
	}
	return h->total ? sqrt(sum / h->total) / US : 0;
}

static void write_percentiles(FILE *to, const struct hist *h)
{
	unsigned int bucket = 0;
	uint64_t seen = h->count[0];

	for (double percent = 0; seen < h->total; percent += step(percent)) {
		while (seen < 1 || seen < percent / 100 * h->total)
			seen += h->count[++bucket];
		if (seen < h->total)
			fprintf(to, "%12.3f %2.12f %10llu %14.2f\n", top_us(h, bucket),
				percent / 100, (unsigned long long)seen, 100 / (100 - percent));
	}
	if (h->total)
		fprintf(to, "%12.3f %2.12f %10llu\n", h->max / US, 1.0, (unsigned long long)seen);
}

int hdr_write(FILE *to, const struct hist *h)
{
	fprintf(to, "%12s %14s %10s %14s\n\n", "Value", "Percentile", "TotalCount",
		"1/(1-Percentile)");
	write_percentiles(to, h);
	fprintf(to, "#[Mean    = %12.3f, StdDeviation   = %12.3f]\n", hist_mean(h) / US,
		deviation_us(h));
	fprintf(to, "#[Max     = %12.3f, Total count    = %12llu]\n", h->max / US,
		(unsigned long long)h->total);
	fprintf(to, "#[Buckets = %12u, SubBuckets     = %12u]\n",
		HIST_BUCKETS / (1U << HIST_SUB_BITS), 2U << HIST_SUB_BITS);
	return fflush(to) || ferror(to) ? -1 : 0;
}
