/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * DOCTOR: what `xkv doctor` finds, for those who have no shell on this machine; the console asks
 * it.  To ask a driver for its counters may take long, so a thread does that, once for all who have
 * asked meanwhile.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "database/database.h"
#include "doctor/doctor.h"
#include "net/server.h"
#include "util/thread.h"

#define POINTS_MAX 256 /* more than there are checks, for each of several interfaces */

struct point {
	const struct check *check;
	struct finding found;
};

struct examination {
	int over; /* eventfd */
	bool runs;
	pthread_t thread;
	struct waiters waiters;
	/* of the thread, while it runs */
	struct patient patient;
	struct point point[POINTS_MAX];
	unsigned int count;
};

/* ---- the thread ------------------------------------------------------------ */

static void doctor_take(void *arg, const struct check *check, const struct finding *f)
{
	struct examination *e = arg;

	if (e->count < POINTS_MAX)
		e->point[e->count++] = (struct point){ check, *f };
}

static void *examine(void *arg)
{
	struct examination *e = arg;

	pthread_setname_np(pthread_self(), "xkvd-doctor");
	doctor_examine(&e->patient, doctor_take, e);
	eventfd_write(e->over, 1);
	return NULL;
}

/* ---- the server ------------------------------------------------------------ */

static void discharge(struct examination *e)
{
	pthread_join(e->thread, NULL);
	facts_free(&e->patient.info);
	facts_free(&e->patient.config);
	e->runs = false;
}

static bool on_over(void *arg)
{
	struct examination *e = arg;
	eventfd_t times;

	if (!eventfd_read(e->over, &times) && e->runs) {
		discharge(e);
		waiters_wake(&e->waiters);
	}
	return false;
}

static struct examination *examination_of(struct server *s)
{
	struct examination *e = shared_of(s)->examination;

	if (e)
		return e;
	e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	e->over = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (e->over < 0 || server_add_fd(s, e->over, USES_NO_CONTEXT, on_over, e)) {
		if (e->over >= 0)
			close(e->over);
		free(e);
		return NULL;
	}
	return shared_of(s)->examination = e;
}

void examination_free(struct examination *e)
{
	if (!e)
		return;
	if (e->runs)
		discharge(e);
	close(e->over);
	free(e);
}

static void take_directive(void *arg, const char *name, const char *value)
{
	struct patient *p = arg;

	/* what it lacks for want of memory is not looked at */
	facts_add(&p->config, name, value);
}

static void take_history(struct server *s, struct patient *p)
{
	static const char *const every[] = { "*" };
	const struct resp_arg everything = { .ptr = "everything", .len = 10 };
	size_t len;
	char *text = info_text(s, 1, &everything, &len);

	if (text)
		facts_add_info(&p->info, text);
	free(text);
	config_get(s->cfg, every, 1, take_directive, p);
}

/* 0 or -errno. */
static int doctor_begin(struct server *s, struct examination *e)
{
	int ret;

	e->count = 0;
	e->patient = (struct patient){ .root = "", .is_here = true };
	take_history(s, &e->patient);
	e->patient.interfaces = fact(&e->patient.config, "interface");
	ret = thread_without_signals(&e->thread, examine, e);
	e->runs = !ret;
	if (ret) {
		facts_free(&e->patient.info);
		facts_free(&e->patient.config);
	}
	return ret;
}

/* ---- the command ----------------------------------------------------------- */

static void reply_pair(struct reply *r, const char *name, const char *value)
{
	reply_text(r, name);
	reply_text(r, value);
}

static bool reply_step(struct caller *c)
{
	struct examination *e = shared_of(c->srv)->examination;
	struct reply *r = reply_to(c);

	if (e->runs) { /* another one has begun */
		caller_wait(c, &e->waiters);
		return false;
	}
	reply_array(r, e->count);
	for (const struct point *p = e->point; p < e->point + e->count; p++) {
		reply_map(r, 5);
		reply_pair(r, "point", p->check->name);
		reply_pair(r, "grade", doctor_grades[p->found.grade]);
		reply_pair(r, "value", p->found.value);
		reply_pair(r, "why", p->check->why);
		reply_pair(r, "mend", p->found.grade == GOOD ? "" : p->found.mend);
	}
	return true;
}

void cmd_doctor(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct examination *e = examination_of(c->srv);
	int ret = !e ? -ENOMEM : e->runs ? 0 : doctor_begin(c->srv, e);

	if (ret) {
		reply_error(reply_to(c), "ERR the machine cannot be examined: %s", strerror(-ret));
		return;
	}
	long_begin(c, reply_step);
	caller_wait(c, &e->waiters);
}
