/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * FUNCTION, FCALL: libraries of functions.  They have an interpreter of their own, made from the
 * records that snapshots keep (persist/snapshot.h), which are written again with each change.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bpf/layout.h"
#include "database/database.h"
#include "interpreter.h"
#include "persist/rdb.h"
#include "persist/snapshot.h"
#include "script.h"
#include "util/clock.h"
#include "util/glob.h"
#include "util/log.h"
#include "util/text.h"

TAILQ_HEAD(library_list, library);

struct functions {
	struct interpreter *lua;
	struct library_list libraries;
	/* libraries of the snapshot that did not load: only their text is kept, for the next one */
	struct library_list unusable;
};

/* --- the libraries --- */

static struct library *find_library(const struct library_list *list, const char *name, size_t len)
{
	struct library *lib;

	TAILQ_FOREACH(lib, list, link)
		if (strlen(lib->name) == len && memcmp(lib->name, name, len) == 0)
			return lib;
	return NULL;
}

static const struct function *find_function(const struct library_list *list, const char *name,
					    size_t len)
{
	const struct library *lib;

	TAILQ_FOREACH(lib, list, link)
		for (unsigned int i = 0; i < lib->count; i++)
			if (text_is(name, len, lib->functions[i].name))
				return &lib->functions[i];
	return NULL;
}

/* The first function of `lib` whose name another library has. */
static const char *collision(const struct library_list *list, const struct library *lib)
{
	const char *name;

	for (unsigned int i = 0; i < lib->count; i++) {
		name = lib->functions[i].name;
		if (find_function(list, name, strlen(name)))
			return name;
	}
	return NULL;
}

static void free_libraries(struct interpreter *lua, struct library_list *list)
{
	struct library *lib;

	while ((lib = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, lib, link);
		library_free(lua, lib);
	}
}

static size_t records_room(const struct library_list *list)
{
	const struct library *lib;
	size_t room = 0;

	TAILQ_FOREACH(lib, list, link)
		room += RDB_DUMP_MAX(lib->len);
	return room;
}

/* Writes a record for each library, and returns the length of them. */
static size_t write_records(const struct library_list *list, unsigned char *to)
{
	const struct library *lib;
	size_t len = 0;

	TAILQ_FOREACH(lib, list, link)
		len += rdb_function_record(to + len, lib->text, lib->len);
	return len;
}

/*
 * Drops libraries that did not load if one that did has the same name: Redis refuses a snapshot in
 * which a name occurs twice.
 */
static void drop_replaced(struct functions *f)
{
	struct library *lib, *next;

	for (lib = TAILQ_FIRST(&f->unusable); lib; lib = next) {
		next = TAILQ_NEXT(lib, link);
		if (!find_library(&f->libraries, lib->name, strlen(lib->name)))
			continue;
		TAILQ_REMOVE(&f->unusable, lib, link);
		library_free(f->lua, lib);
	}
}

/* Hands the texts of all libraries to snapshots; to be called after each change. */
static void function_publish(struct functions *f)
{
	unsigned char *records;
	size_t len;

	snapshot_changed();
	drop_replaced(f);
	records = malloc(records_room(&f->libraries) + records_room(&f->unusable) + RDB_DUMP_FRAME);
	if (!records) {
		log_repeated("out of memory: the next snapshot has functions as they were");
		return;
	}
	len = write_records(&f->libraries, records);
	len += write_records(&f->unusable, records + len);
	snapshot_set_functions(records, len);
}

/* The same after a library was added, which is the last one: the others are there. */
static void publish_last(struct functions *f)
{
	const struct library *lib = TAILQ_LAST(&f->libraries, library_list);

	if (!TAILQ_EMPTY(&f->unusable) || snapshot_add_function(lib->text, lib->len))
		function_publish(f);
	else
		snapshot_changed();
}

static unsigned int count_libraries(const struct library_list *list)
{
	const struct library *lib;
	unsigned int count = 0;

	TAILQ_FOREACH(lib, list, link)
		count++;
	return count;
}

/* --- the first line: #!lua name=... --- */

#define LINE_MAX_BYTES 512

/* The engine and the name, in `line`.  False, and the reason is in `error`. */
static bool function_read_line(char *line, size_t len, char **engine, char **name, char *error,
			       size_t size)
{
	char *at = line, *end = line + len, *word = line;
	size_t word_len, engine_len = 2, name_len = 0;
	int more = text_next_word(&at, end, &word, &engine_len);

	*name = NULL;
	*engine = word;
	while (more > 0 && (more = text_next_word(&at, end, &word, &word_len)) > 0) {
		if (word_len < 5 || strncasecmp(word, "name=", 5) != 0) {
			snprintf(error, size, "ERR Invalid metadata value given: %.*s",
				 (int)word_len, word);
			return false;
		}
		if (*name) {
			snprintf(error, size,
				 "ERR Invalid metadata value, name argument was given "
				 "multiple times");
			return false;
		}
		*name = word + 5;
		name_len = word_len - 5;
	}
	if (memchr(*engine, '\0', engine_len) || (*name && memchr(*name, '\0', name_len)))
		more = -1; /* "l\x00": what is behind it would be lost */
	if (more < 0)
		snprintf(error, size, "ERR Invalid library metadata");
	else if (!*name)
		snprintf(error, size, "ERR Library name was not given");
	if (more < 0 || !*name)
		return false;
	(*engine)[engine_len] = '\0'; /* not before: it ends the line */
	(*name)[name_len] = '\0';
	*engine += 2;
	return true;
}

/* Copies the first line of a text, without its end, with a NUL.  0: there is none. */
static size_t function_take_line(const struct resp_arg *text, char line[LINE_MAX_BYTES],
				 char *error, size_t size)
{
	const char *end = memchr(text->ptr, '\n', text->len);
	size_t len = end ? (size_t)(end - text->ptr) : 0;

	if (text->len < 2 || memcmp(text->ptr, "#!", 2) != 0) {
		snprintf(error, size, "ERR Missing library metadata");
		return 0;
	}
	if (!len || len >= LINE_MAX_BYTES || memchr(text->ptr, '\0', len)) {
		snprintf(error, size, "ERR Invalid library metadata");
		return 0;
	}
	memcpy(line, text->ptr, len);
	line[len] = '\0';
	return len;
}

/* --- loading --- */

static struct library *new_library(const char *name, const struct resp_arg *text)
{
	struct library *lib = calloc(1, sizeof(*lib));

	if (!lib)
		return NULL;
	lib->name = strdup(name);
	lib->text = malloc(text->len);
	lib->len = text->len;
	if (lib->name && lib->text) {
		memcpy(lib->text, text->ptr, text->len);
		return lib;
	}
	library_free(NULL, lib);
	return NULL;
}

/* Executes the library and adds it to the list, of which `old` (NULL = none) is taken out. */
static bool compile(struct interpreter *lua, struct library_list *list, struct library *old,
		    struct library *lib, const struct resp_arg *body, char *error, size_t size)
{
	const char *taken;

	if (!interpreter_load_library(lua, lib, body, error, size))
		return false;
	if (old)
		TAILQ_REMOVE(list, old, link);
	taken = collision(list, lib);
	if (taken) {
		if (old)
			TAILQ_INSERT_TAIL(list, old, link);
		snprintf(error, size, "ERR Function %s already exists", taken);
		return false;
	}
	library_free(lua, old);
	TAILQ_INSERT_TAIL(list, lib, link);
	return true;
}

/* Loads a library into a list.  Its name, NULL: the reason is in `error`. */
static const char *function_load(struct interpreter *lua, struct library_list *list,
				 const struct resp_arg *text, bool replace, char *error,
				 size_t size)
{
	char line[LINE_MAX_BYTES], *engine, *name;
	size_t len = function_take_line(text, line, error, size);
	struct resp_arg body = { .ptr = text->ptr + len, .len = text->len - len };
	struct library *lib, *old;

	if (!len || !function_read_line(line, len, &engine, &name, error, size))
		return NULL;
	old = find_library(list, name, strlen(name));
	lib = NULL;
	if (!function_name_ok(name, strlen(name)))
		snprintf(error, size,
			 "ERR Library names can only contain letters, numbers, or "
			 "underscores(_) and must be at least one character long");
	else if (strcasecmp(engine, "lua") != 0)
		snprintf(error, size, "ERR Engine '%s' not found", engine);
	else if (old && !replace)
		snprintf(error, size, "ERR Library '%s' already exists", name);
	else if (text->len > XKV_VALUE_MAX)
		snprintf(error, size, "ERR a library is at most 1 MiB long");
	else if (!(lib = new_library(name, text)))
		snprintf(error, size, "ERR out of memory");
	if (!lib)
		return NULL;
	if (compile(lua, list, old, lib, &body, error, size))
		return lib->name;
	library_free(lua, lib);
	return NULL;
}

/* --- the functions of a worker --- */

/* Where the libraries of a dump or a snapshot go. */
struct reading {
	struct interpreter *lua;
	struct library_list *list;
	struct library_list *unusable; /* for those that do not load; NULL: that is an error */
	char error[512];
};

static int read_text(void *arg, const void *text, size_t len)
{
	const struct resp_arg copy = { .ptr = (char *)(uintptr_t)text, .len = len };
	struct reading *r = arg;

	return function_load(r->lua, r->list, &copy, false, r->error, sizeof(r->error))
		       ? 0
		       : -ECANCELED;
}

/* Keeps the text of a library that does not load, and the name if its first line has one. */
static int keep_unusable(const struct reading *r, const struct resp_arg *text)
{
	char line[LINE_MAX_BYTES], error[256], *engine, *name = line;
	size_t len = function_take_line(text, line, error, sizeof(error));
	struct library *lib;

	if (!len || !function_read_line(line, len, &engine, &name, error, sizeof(error)) ||
	    !function_name_ok(name, strlen(name)))
		*(name = line) = '\0';
	lib = new_library(name, text);
	if (!lib)
		return -ENOMEM;
	TAILQ_INSERT_TAIL(r->unusable, lib, link);
	log_warning("a library of functions cannot be loaded: %s; it stays in snapshots, until "
		    "FUNCTION %s%s",
		    r->error, *lib->name ? "DELETE " : "FLUSH", lib->name);
	return 0;
}

static int read_saved(void *arg, const void *text, size_t len)
{
	const struct resp_arg copy = { .ptr = (char *)(uintptr_t)text, .len = len };

	return read_text(arg, text, len) ? keep_unusable(arg, &copy) : 0;
}

static void read_snapshot(struct functions *f)
{
	struct reading r = { .lua = f->lua, .list = &f->libraries, .unusable = &f->unusable };
	size_t len;
	void *records = snapshot_functions(&len);

	if (records && len &&
	    rdb_functions_read(records, rdb_functions_end(records, len), read_saved, &r))
		log_warning("functions are missing: out of memory");
	free(records);
}

/* Made when it is needed; NULL: no memory. */
static struct functions *functions_of(struct shared *shared)
{
	struct functions *f = shared->functions;

	if (f)
		return f;
	f = calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	TAILQ_INIT(&f->libraries);
	TAILQ_INIT(&f->unusable);
	f->lua = interpreter_new();
	if (!f->lua) {
		free(f);
		return NULL;
	}
	shared->functions = f;
	read_snapshot(f);
	return f;
}

/* The same; on NULL the error was replied. */
static struct functions *functions(struct caller *c)
{
	struct functions *f = functions_of(shared_of(c->srv));

	if (!f)
		reply_error(reply_to(c), "ERR no memory for the Lua interpreter");
	return f;
}

void functions_free(struct shared *shared)
{
	struct functions *f = shared->functions;

	if (!f)
		return;
	free_libraries(f->lua, &f->libraries);
	free_libraries(f->lua, &f->unusable);
	interpreter_free(f->lua);
	free(f);
	shared->functions = NULL;
}

struct function_figures function_figures(struct shared *shared)
{
	const struct functions *f = functions_of(shared);
	struct function_figures n = { 0 };
	const struct library *lib;

	if (!f)
		return n;
	n.memory = interpreter_memory(f->lua);
	TAILQ_FOREACH(lib, &f->libraries, link) {
		n.libraries++;
		n.functions += lib->count;
	}
	return n;
}

/* --- FUNCTION LOAD, DELETE, FLUSH --- */

void cmd_function_load(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct functions *f = functions(c);
	bool replace = false;
	unsigned int before;
	char error[1024];
	const char *name;

	if (!f)
		return;
	before = count_libraries(&f->libraries);
	for (unsigned int i = 2; i < argc - 1; i++) {
		if (!arg_is(&argv[i], "replace")) {
			reply_error(reply_to(c), "ERR Unknown option given: %.*s", (int)argv[i].len,
				    argv[i].ptr);
			return;
		}
		replace = true;
	}
	name = function_load(f->lua, &f->libraries, &argv[argc - 1], replace, error, sizeof(error));
	if (name) {
		if (count_libraries(&f->libraries) > before)
			publish_last(f);
		else
			function_publish(f);
		reply_text(reply_to(c), name);
	} else {
		reply_error(reply_to(c), "%s", error);
	}
}

void cmd_function_delete(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct functions *f = functions(c);
	struct library_list *list;
	struct library *lib;

	if (!f)
		return;
	list = &f->libraries;
	lib = find_library(list, argv[2].ptr, argv[2].len);
	if (!lib) {
		list = &f->unusable;
		lib = find_library(list, argv[2].ptr, argv[2].len);
	}
	if (!lib) {
		reply_error(reply_to(c), "ERR Library not found");
		return;
	}
	TAILQ_REMOVE(list, lib, link);
	library_free(f->lua, lib);
	function_publish(f);
	reply_ok(reply_to(c));
}

void cmd_function_flush(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (argc > 3) {
		reply_subcommand_usage(c, "FUNCTION", &argv[1]);
	} else if (argc == 3 && !arg_is(&argv[2], "sync") && !arg_is(&argv[2], "async")) {
		reply_error(reply_to(c), "ERR FUNCTION FLUSH only supports SYNC|ASYNC option");
	} else {
		functions_free(shared_of(c->srv));
		snapshot_set_functions(NULL, 0);
		snapshot_changed();
		reply_ok(reply_to(c));
	}
}

/* --- FUNCTION LIST, STATS --- */

struct listing {
	bool code, some; /* WITHCODE; only libraries that match `pattern` */
	struct glob pattern;
};

/* On false the error was replied. */
static bool list_options(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			 struct listing *l)
{
	l->code = l->some = false;
	for (unsigned int i = 2; i < argc; i++) {
		if (!l->code && arg_is(&argv[i], "withcode")) {
			l->code = true;
		} else if (!l->some && arg_is(&argv[i], "libraryname")) {
			if (++i == argc) {
				reply_error(reply_to(c), "ERR library name argument was not given");
				return false;
			}
			l->some = true;
			if (!glob_compile(&l->pattern, argv[i].ptr, argv[i].len, true)) {
				reply_error(reply_to(c), "ERR " GLOB_TOO_LONG);
				return false;
			}
		} else {
			reply_error(reply_to(c), "ERR Unknown argument %.*s", (int)argv[i].len,
				    argv[i].ptr);
			return false;
		}
	}
	return true;
}

static bool is_listed(const struct listing *l, const struct library *lib)
{
	return !l->some || glob_test(&l->pattern, lib->name, strlen(lib->name));
}

static void reply_function(struct reply *r, const struct function *f)
{
	unsigned int flags = f->flags & (SCRIPT_HAS_FLAGS - 1);

	reply_map(r, 3);
	reply_text(r, "name");
	reply_text(r, f->name);
	reply_text(r, "description");
	if (f->description)
		reply_text(r, f->description);
	else
		reply_null(r);
	reply_text(r, "flags");
	reply_set(r, (size_t)__builtin_popcount(flags));
	for (unsigned int i = 0; i < SCRIPT_FLAGS; i++)
		if (flags >> i & 1)
			reply_status(r, script_flag_names[i]);
}

static void reply_library(struct reply *r, const struct library *lib, bool code)
{
	reply_map(r, code ? 4 : 3);
	reply_text(r, "library_name");
	reply_text(r, lib->name);
	reply_text(r, "engine");
	reply_text(r, "LUA");
	reply_text(r, "functions");
	reply_array(r, lib->count);
	for (unsigned int i = 0; i < lib->count; i++)
		reply_function(r, &lib->functions[i]);
	if (!code)
		return;
	reply_text(r, "library_code");
	reply_bulk(r, lib->text, lib->len);
}

void cmd_function_list(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct functions *f = functions(c);
	const struct library *lib;
	struct listing l;
	size_t count = 0;

	if (!f || !list_options(c, argc, argv, &l))
		return;
	TAILQ_FOREACH(lib, &f->libraries, link)
		count += is_listed(&l, lib);
	reply_array(reply_to(c), count);
	TAILQ_FOREACH(lib, &f->libraries, link)
		if (is_listed(&l, lib))
			reply_library(reply_to(c), lib, l.code);
}

static void reply_running(struct reply *r, const struct script_run *run)
{
	unsigned int argc = 3 + run->keys + run->args;

	reply_map(r, 3);
	reply_text(r, "name");
	reply_text(r, run->name);
	reply_text(r, "command");
	reply_array(r, argc);
	for (unsigned int i = 0; i < argc; i++)
		reply_bulk(r, run->argv[(int)i - 3].ptr, run->argv[(int)i - 3].len);
	reply_text(r, "duration_ms");
	reply_int(r, (int64_t)((monotonic_ns() - run->start_ns) / 1000000));
}

void cmd_function_stats(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct script_run *run = shared_of(c->srv)->script;
	struct reply *r = reply_to(c);
	struct function_figures n;

	if (run && !run->function) {
		reply_error(r, "%s", script_busy(c));
		return;
	}
	n = function_figures(shared_of(c->srv));
	reply_map(r, 2);
	reply_text(r, "running_script");
	if (run)
		reply_running(r, run);
	else
		reply_null(r);
	reply_text(r, "engines");
	reply_map(r, 1);
	reply_text(r, "LUA");
	reply_map(r, 2);
	reply_text(r, "libraries_count");
	reply_int(r, n.libraries);
	reply_text(r, "functions_count");
	reply_int(r, n.functions);
}

void cmd_function_kill(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	script_kill(c, true);
}

/* --- FUNCTION DUMP, RESTORE --- */

void cmd_function_dump(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	void *records;
	size_t len;

	if (!functions(c))
		return;
	records = snapshot_functions(&len);
	if (records)
		reply_bulk(reply_to(c), records, rdb_functions_end(records, len));
	else
		reply_error(reply_to(c), "ERR out of memory");
	free(records);
}

/* Adds the libraries of `from` to `to`; if `replace`, instead of those of the same names. */
static bool function_join(struct interpreter *lua, struct library_list *to,
			  struct library_list *from, bool replace, char *error, size_t size)
{
	struct library_list old = TAILQ_HEAD_INITIALIZER(old);
	struct library *lib, *same;
	const char *taken = NULL;

	TAILQ_FOREACH(lib, from, link) {
		same = find_library(to, lib->name, strlen(lib->name));
		if (same && !replace) {
			snprintf(error, size, "ERR Library %s already exists", lib->name);
			return false;
		}
		if (!same)
			continue;
		TAILQ_REMOVE(to, same, link);
		TAILQ_INSERT_TAIL(&old, same, link);
	}
	TAILQ_FOREACH(lib, from, link)
		taken = taken ? taken : collision(to, lib);
	if (taken) {
		snprintf(error, size, "ERR Function %s already exists", taken);
		TAILQ_CONCAT(to, &old, link);
		return false;
	}
	TAILQ_CONCAT(to, from, link);
	free_libraries(lua, &old);
	return true;
}

static void reply_restore_error(struct caller *c, int error, const char *why)
{
	if (error == -EBADMSG)
		why = "ERR DUMP payload version or checksum are wrong";
	else if (error == -ENOTSUP)
		why = "ERR given type is not a function";
	else if (error == -ENOMEM)
		why = "ERR out of memory";
	else if (!*why)
		why = "ERR failed loading the given functions payload";
	reply_error(reply_to(c), "%s", why);
}

void cmd_function_restore(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	bool flush = argc == 4 && arg_is(&argv[3], "flush");
	bool replace = argc == 4 && arg_is(&argv[3], "replace");
	struct library_list list = TAILQ_HEAD_INITIALIZER(list);
	struct functions *f = functions(c);
	struct reading r = { .list = &list };
	int ret;

	if (argc > 4) {
		reply_subcommand_usage(c, "FUNCTION", &argv[1]);
		return;
	}
	if (argc == 4 && !flush && !replace && !arg_is(&argv[3], "append")) {
		reply_error(reply_to(c), "ERR Wrong restore policy given, value should be either "
					 "FLUSH, APPEND or REPLACE.");
		return;
	}
	if (!f)
		return;
	r.lua = f->lua;
	ret = rdb_functions_read(argv[2].ptr, argv[2].len, read_text, &r);
	if (!ret && flush) {
		free_libraries(f->lua, &f->libraries);
		free_libraries(f->lua, &f->unusable);
	}
	if (!ret &&
	    function_join(f->lua, &f->libraries, &list, replace, r.error, sizeof(r.error))) {
		function_publish(f);
		reply_ok(reply_to(c));
		return;
	}
	free_libraries(f->lua, &list);
	reply_restore_error(c, ret, r.error);
}

/* --- FCALL --- */

unsigned int function_flags(struct caller *c, const struct resp_arg *name)
{
	const struct functions *f = functions_of(shared_of(c->srv));
	const struct function *fn = NULL;

	if (f)
		fn = find_function(&f->libraries, name->ptr, name->len);
	return fn ? fn->flags : 0;
}

static void fcall(struct caller *c, unsigned int argc, const struct resp_arg *argv, bool read_only)
{
	const struct functions *f = functions(c);
	const struct function *fn;
	struct script_run run = { .argv = argv + 3 };
	int64_t keys;

	if (!f)
		return;
	fn = find_function(&f->libraries, argv[1].ptr, argv[1].len);
	if (!fn) {
		reply_error(reply_to(c), "ERR Function not found");
		return;
	}
	if (!text_to_i64(argv[2].ptr, argv[2].len, &keys)) {
		reply_error(reply_to(c), "ERR Bad number of keys provided");
		return;
	}
	if (!script_count_keys(c, argc, keys, &run))
		return;
	run.name = fn->name;
	run.function = fn->ref;
	script_run(c, f->lua, &run, fn->flags, read_only);
}

void cmd_fcall(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	fcall(c, argc, argv, false);
}

void cmd_fcall_ro(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	fcall(c, argc, argv, true);
}
