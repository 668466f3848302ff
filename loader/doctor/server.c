// SPDX-License-Identifier: BSD-2-Clause
/*
 * What `xkv doctor` checks of the xkvd that answers, by INFO and CONFIG GET, and of the files that
 * it names, if it runs on this machine; doctor.h.
 */
#include <errno.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#include "doctor.h"
#include "util/files.h"

#define CERTIFICATE_DAYS 30 /* to replace one that ends */

static const char *info(const struct patient *p, const char *name)
{
	return fact(&p->info, name);
}

static const char *config(const struct patient *p, const char *name)
{
	return fact(&p->config, name);
}

static bool has_answered(const struct patient *p)
{
	return p->info.len;
}

static bool check_server(const struct patient *p, struct finding *f)
{
	if (*info(p, "xkv_version"))
		return say(f, GOOD, "xkvd %s, for %s s%s", info(p, "xkv_version"),
			   info(p, "uptime_in_seconds"), p->is_here ? "" : ", on another machine");
	say(f, WARNING, "%s", has_answered(p) ? "what answers is no xkvd" : p->silence);
	return mend(f, "systemctl status xkvd; xkv doctor needs the options that reach it");
}

static bool check_attached(const struct patient *p, struct finding *f)
{
	const char *mode = info(p, "xkv_mode");

	if (!has_answered(p) || !*config(p, "interface"))
		return false;
	if (!strcmp(mode, "native"))
		return say(f, GOOD, "%s, native", config(p, "interface"));
	say(f, !strcmp(mode, "generic") ? WARNING : BAD, "%s, %s", config(p, "interface"), mode);
	if (!strcmp(config(p, "mode"), "generic"))
		return mend(f, "in xkvd.conf `mode auto`, and restart xkvd");
	return mend(f, "journalctl -u xkvd -p warning    # the points above, or this, say why");
}

static bool check_upstream(const struct patient *p, struct finding *f)
{
	const char *place = info(p, "upstream");

	if (!*place)
		return false;
	if (strcmp(info(p, "upstream_up"), "1")) {
		say(f, BAD, "%s: %s", place, info(p, "upstream_error"));
		return mend(f, "redis-cli xkv info upstream");
	}
	if (!strcmp(info(p, "upstream_caches"), "1"))
		return say(f, GOOD, "%s, version %s", place, info(p, "upstream_version"));
	say(f, WARNING, "%s announces no changes, so nothing is cached", place);
	return mend(f, "journalctl -u xkvd -g 'does not announce'    # says why");
}

/* ---- persistence ----------------------------------------------------------- */

static bool saves(const struct patient *p)
{
	return *config(p, "save") || *config(p, "save-schedule");
}

static bool logs(const struct patient *p)
{
	return !strcmp(config(p, "appendonly"), "yes");
}

static bool check_persistence(const struct patient *p, struct finding *f)
{
	if (!p->config.len || *info(p, "upstream")) /* what is cached need not last */
		return false;
	if (!strcmp(info(p, "rdb_last_bgsave_status"), "err") ||
	    !strcmp(info(p, "aof_last_write_status"), "err")) {
		say(f, BAD, "the last snapshot, or the write log, failed: %s",
		    *info(p, "xkv_log_error") ? info(p, "xkv_log_error")
					      : info(p, "rdb_last_bgsave_error"));
		return mend(f, "xkv stats persistence; docs/runbooks.md, XkvWritesRefused");
	}
	if (saves(p) || logs(p))
		return say(f, GOOD, "save \"%s\"%s%s, appendonly %s", config(p, "save"),
			   *config(p, "save-schedule") ? ", save-schedule " : "",
			   config(p, "save-schedule"), config(p, "appendonly"));
	say(f, WARNING, "neither `save` rules nor `save-schedule` nor `appendonly`");
	return mend(f, "redis-cli config set save '3600 1 300 100'; redis-cli config rewrite");
}

/* Bytes that a file may still take in a directory.  Recorded: lines "DIR BYTES" of server/free. */
static bool room_in(const struct patient *p, const char *dir, unsigned long long *bytes)
{
	char text[4200], where[4096];
	struct statvfs fs;

	if (*p->root)
		return read_text(p, text, sizeof(text), "/server/free") &&
		       sscanf(text, "%4095s %llu", where, bytes) == 2 && !strcmp(where, dir);
	if (statvfs(dir, &fs))
		return false;
	*bytes = (unsigned long long)fs.f_bavail * fs.f_frsize;
	return true;
}

/* A snapshot is written beside the one before, and is no larger than the memory of the data. */
static bool check_disk(const struct patient *p, struct finding *f)
{
	unsigned long long data = strtoull(info(p, "used_memory_dataset"), NULL, 10), room;
	const char *dir = config(p, "dir");

	if (!p->is_here || (!saves(p) && !logs(p)))
		return false;
	if (!room_in(p, dir, &room)) {
		say(f, WARNING, "%s: %s", dir, strerror(errno));
		return mend(f, "sudo xkv doctor");
	}
	say(f,
	    room < data	      ? BAD
	    : room / 2 < data ? WARNING
			      : GOOD,
	    "%s has %llu MiB left, the data takes %llu MiB", dir, room >> 20, data >> 20);
	return mend(f, "df -h %s    # make room, or name another `dir`", dir);
}

/* ---- certificates ----------------------------------------------------------- */

/* Days until the first certificate of the file ends.  NULL, or why that is not known; errno. */
static const char *days_left(const struct patient *p, const char *path, int *days)
{
	char whole[4200];
	int seconds;
	X509 *cert;
	FILE *file;
	bool done;

	snprintf(whole, sizeof(whole), "%s%s", p->root, path);
	file = file_open(whole);
	if (!file)
		return file_error(errno);
	cert = PEM_read_X509(file, NULL, NULL, NULL);
	fclose(file);
	errno = 0;
	done = cert && ASN1_TIME_diff(days, &seconds, NULL, X509_get0_notAfter(cert));
	if (done && *days == 0 && seconds < 0)
		*days = -1;
	X509_free(cert);
	return done ? NULL : "it has no certificate";
}

static bool check_certificate(const struct patient *p, struct finding *f, const char *directive)
{
	const char *path = config(p, directive);
	const char *why;
	int days;

	if (!p->is_here || !*path)
		return false;
	why = days_left(p, path, &days);
	if (why) {
		say(f, WARNING, "%s: %s", path, why);
		return mend(f,
			    errno == EACCES ? "sudo xkv doctor"
			    : errno	    ? "ls -l %s"
					    : "openssl x509 -in %s -text",
			    path);
	}
	if (days > CERTIFICATE_DAYS)
		return say(f, GOOD, "%s is valid for %d days", path, days);
	if (days >= 0)
		say(f, WARNING, "%s is valid for %d days only", path, days);
	else
		say(f, BAD, "%s is valid no longer, since %d days", path, -days);
	return mend(f, "put a new one there, then: redis-cli config set %s %s", directive, path);
}

static bool check_own_certificate(const struct patient *p, struct finding *f)
{
	return check_certificate(p, f, "tls-cert-file");
}

static bool check_authority(const struct patient *p, struct finding *f)
{
	return check_certificate(p, f, "tls-ca-cert-file");
}

const struct check server_checks[] = {
	{ "xkvd", check_server, "what it is set to could not be looked at" },
	{ "attached", check_attached, "requests go through the kernel's stack, which is slower" },
	{ "upstream", check_upstream, "what is not cached is passed to it" },
	{ "persistence", check_persistence,
	  "a reboot, or a failure of power, loses what is not saved" },
	{ "disk", check_disk, "a snapshot is written beside the last one, before that is removed" },
	{ "certificate", check_own_certificate,
	  "clients refuse a server whose certificate has ended" },
	{ "authority", check_authority, "no client's certificate is accepted when it has ended" },
	{},
};
