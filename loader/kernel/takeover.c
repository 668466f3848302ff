// SPDX-License-Identifier: BSD-2-Clause
#include "takeover.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "bpf_impl.h"
#include "util/handed.h"

#define WORDS_MAX  (1 << 18) /* bytes of the other one's command line, or environment */
#define TELL_MS	   10000     /* between lines of the log while the other one ends */
#define BARRIER_US 5000000   /* that systemd has to read what it was told */

/* ---- who runs there? ----------------------------------------------------- */

/* The process that has locked the directory; 0: none, or none that can be seen from here. */
static pid_t lock_holder(const char *dir)
{
	FILE *f = fopen("/proc/locks", "re");
	unsigned int maj, min;
	struct stat st;
	char line[256];
	uint64_t inode;
	pid_t pid = 0;
	long holder;

	if (stat(dir, &st))
		memset(&st, 0, sizeof(st));
	while (f && !pid && fgets(line, sizeof(line), f))
		if (sscanf(line, "%*d: FLOCK %*s WRITE %ld %x:%x:%" SCNu64, &holder, &maj, &min,
			   &inode) == 4 &&
		    maj == major(st.st_dev) && min == minor(st.st_dev) && inode == st.st_ino)
			pid = (pid_t)holder;
	if (f)
		fclose(f);
	return pid;
}

/* Is the signal in this mask of the process? */
static bool has_signal(pid_t pid, const char *mask, int number)
{
	uint64_t signals = 0;
	char path[64], line[256];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%ld/status", (long)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, mask, strlen(mask)) &&
		    sscanf(line + strlen(mask), ": %" SCNx64, &signals) == 1)
			break;
	if (f)
		fclose(f);
	return signals >> (number - 1) & 1;
}

/* What ends it while its store goes on; 0: it does not serve. */
static int ending_signal(pid_t pid)
{
	if (has_signal(pid, "SigCgt", SIGUSR2))
		return SIGUSR2;
	/* an older version does not know that signal; one of ours that loads its data holds it */
	return has_signal(pid, "SigCgt", SIGTERM) && !has_signal(pid, "SigBlk", SIGUSR2) ? SIGTERM
											 : 0;
}

static int open_of(pid_t pid, const char *what, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%ld/%s", (long)pid, what);
	return open(path, flags | O_CLOEXEC);
}

/* Words, each with a 0 behind it, from a file of the process: to be freed, NULL if that fails. */
static char *read_words(pid_t pid, const char *what, size_t *len)
{
	char *text = calloc(1, WORDS_MAX);
	int fd = open_of(pid, what, O_RDONLY);
	ssize_t got = fd >= 0 && text ? read(fd, text, WORDS_MAX - 1) : -1;

	if (fd >= 0)
		close(fd);
	if (got >= 0 && got < WORDS_MAX - 1) {
		*len = (size_t)got;
		return text;
	}
	free(text);
	return NULL;
}

/* Its arguments, without --upgrade: to start it again is to start it plainly. */
static char **read_arguments(pid_t pid)
{
	size_t len = 0, count = 0;
	char *text = read_words(pid, "cmdline", &len);
	char **argv = text ? calloc(len + 1, sizeof(*argv)) : NULL;

	for (char *at = text; argv && at < text + len; at += strlen(at) + 1)
		if (count != 1 || strcmp(at, "--upgrade"))
			argv[count++] = at;
	if (!argv)
		free(text);
	return argv;
}

/* Is it run by systemd, or the like, which would take its end for that of the service? */
static bool is_service(pid_t pid)
{
	static const char name[] = "NOTIFY_SOCKET=";
	size_t len = 0;
	char *text = read_words(pid, "environ", &len);
	bool found = false;

	for (const char *at = text; at && at < text + len && !found; at += strlen(at) + 1)
		found = !strncmp(at, name, sizeof(name) - 1);
	free(text);
	return found;
}

static int fail_nobody(const struct config *cfg, char *err, size_t err_len)
{
	int lock = bpf_is_pinned(cfg) ? bpf_lock_pin_dir(cfg->pin_dir, err, err_len) : -ENOENT;

	if (lock == -EWOULDBLOCK)
		return fail(lock, err, err_len,
			    "the xkvd on %s cannot be seen from here (another PID namespace?)",
			    cfg->pin_dir);
	if (lock >= 0)
		close(lock);
	return fail(-ESRCH, err, err_len,
		    "no xkvd is running on %s: start this one without --upgrade", cfg->pin_dir);
}

/* Opens all that is needed of it, while it is certain that this is the process. */
static int find(struct takeover *t, const struct config *cfg, char *err, size_t err_len)
{
	pid_t pid = lock_holder(cfg->pin_dir);

	if (!pid)
		return fail_nobody(cfg, err, err_len);
	t->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	t->exe = open_of(pid, "exe", O_RDONLY);
	t->cwd = open_of(pid, "cwd", O_RDONLY | O_DIRECTORY);
	if (t->pidfd < 0 || t->exe < 0 || t->cwd < 0)
		return fail(-errno, err, err_len,
			    "cannot look into process %ld, the xkvd on %s: %s: run it as root, or "
			    "as its user and with its capabilities",
			    (long)pid, cfg->pin_dir, strerror(errno));
	t->argv = read_arguments(pid);
	t->signal = ending_signal(pid);
	if (!t->argv || !t->signal || lock_holder(cfg->pin_dir) != pid)
		return fail(-EAGAIN, err, err_len,
			    "process %ld, the xkvd on %s, does not serve (yet, or any more)",
			    (long)pid, cfg->pin_dir);
	if (is_service(pid) && !getenv("NOTIFY_SOCKET"))
		return fail(-EPERM, err, err_len,
			    "process %ld, the xkvd on %s, is run by systemd: systemctl reload xkvd",
			    (long)pid, cfg->pin_dir);
	t->pid = pid;
	return 0;
}

int takeover_prepare(struct takeover *t, struct bpf *bpf, const struct config *cfg, char *err,
		     size_t err_len)
{
	int ret = bpf_check_capabilities(cfg, err, err_len);

	if (!ret)
		ret = find(t, cfg, err, err_len);
	if (!ret)
		ret = bpf_prepare(bpf, cfg, err, err_len);
	if (!ret)
		ret = handed_take(t->pid, t->pidfd, err, err_len);
	return ret;
}

/* ---- a process of its own ------------------------------------------------ */

/* The process that was called.  Its end says how it went. */
static void wait_for_success(int told)
{
	char done = 0;

	while (read(told, &done, 1) < 0 && errno == EINTR)
		;
	if (!done)
		fprintf(stderr,
			"%sxkvd: the new xkvd does not serve: its log says why, and whether the "
			"older one is started again\n",
			log_priority(LOG_LEVEL_WARNING));
	_exit(done ? 0 : 1);
}

/*
 * systemd takes for the main process only whose end it will notice: a child of its own.  So there
 * is one between, whose end makes it that.
 */
void takeover_begin(struct takeover *t)
{
	int told[2] = { -1, -1 };
	pid_t child = pipe2(told, O_CLOEXEC) ? -1 : fork();

	if (child > 0) {
		close(told[1]);
		handed_drop(); /* if the older one comes back, it makes its own */
		waitpid(child, NULL, 0);
		wait_for_success(told[0]);
	}
	if (!child && setsid() > 0)
		child = fork();
	if (child < 0)
		fprintf(stderr, "xkvd: cannot fork: %s\n", strerror(errno));
	if (child)
		_exit(child < 0);
	close(told[0]);
	t->told = told[1];
}

void takeover_done(struct takeover *t)
{
	if (write(t->told, "+", 1) != 1)
		log_debug("who called --upgrade does not wait");
	close(t->told);
	handed_close();
}

/* ---- the other one ------------------------------------------------------- */

void takeover_end_other(const struct takeover *t)
{
	struct pollfd ended = { .fd = t->pidfd, .events = POLLIN };

	/* Before the end of the one that systemd knows, which would be that of the unit. */
	sd_notifyf(0, "MAINPID=%d\nSTATUS=Taking over from process %d", getpid(), t->pid);
	sd_notify_barrier(0, BARRIER_US);
	log_notice("taking over from process %d%s", t->pid,
		   t->signal == SIGTERM ? ", which is of an older version, and saves a snapshot "
					  "first if its `save` rules say so"
					: "");
	if (syscall(SYS_pidfd_send_signal, t->pidfd, t->signal, NULL, 0) && errno != ESRCH)
		log_warning("cannot signal process %d: %s", t->pid, strerror(errno));
	while (poll(&ended, 1, TELL_MS) <= 0)
		log_notice("process %d has not ended yet (a late disk?)", t->pid);
	/* It has said STOPPING=1: where the reload ends next, the unit would stop. */
	sd_notify(0, "READY=1");
	sd_notify_barrier(0, BARRIER_US);
}

void takeover_back(const struct takeover *t, const struct config *cfg)
{
	if (lock_holder(cfg->pin_dir))
		return; /* somebody else was faster, and serves */
	log_warning("process %d had served before: its program is started again", t->pid);
	log_set_level(LOG_LEVEL_WARNING);
	if (fchdir(t->cwd))
		log_warning("cannot go to its directory: %s", strerror(errno));
	fexecve(t->exe, t->argv, environ);
	log_warning("cannot start its program: %s", strerror(errno));
}
