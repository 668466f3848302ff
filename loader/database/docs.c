/* SPDX-License-Identifier: BSD-2-Clause */
/* COMMAND DOCS, and the syntax that HELP shows: commands.def says how arguments are described. */
#include <ctype.h>
#include <string.h>

#include "database/database.h"

/* --- arguments --- */

static const struct {
	char letter;
	const char *name;
} type_names[] = {
	{ 's', "string" }, { 'i', "integer" }, { 'd', "double" },
	{ 'k', "key" },	   { 'p', "pattern" }, { 'u', "unix-time" },
	{ 'o', "oneof" },  { 'b', "block" },   { 't', "pure-token" },
};

#define DELIMITERS " ()=@!?*+"

/* A part of the text; `at` is NULL if there is none. */
struct part {
	const char *at;
	size_t len;
};

struct argument {
	struct part name, token, since, deprecated;
	const char *inner; /* NULL = none */
	char type;
	int key; /* -1 = none */
	bool optional, repeated, token_repeated;
};

static struct part part_from(const char **at)
{
	struct part part = { *at, strcspn(*at, DELIMITERS) };

	*at += part.len;
	return part;
}

/* Behind the parenthesis that closes the one before `at`. */
static const char *skip_inner(const char *at)
{
	for (int depth = 1; depth; at++)
		depth += (*at == '(') - (*at == ')');
	return at;
}

static struct argument named_argument(const char **at)
{
	struct part word = part_from(at);
	const char *colon = memrchr(word.at, ':', word.len);
	struct argument a = { .name = word, .type = 't', .key = -1 };

	if (!colon) {
		a.token = word;
		return a;
	}
	a.name.len = (size_t)(colon - word.at);
	a.type = colon[1];
	if (isdigit((unsigned char)colon[2]))
		a.key = colon[2] - '0';
	return a;
}

/* Reads one argument; returns where the next one is, or the end of the list. */
static const char *read_argument(const char *at, struct argument *a)
{
	*a = named_argument(&at);
	for (;;) {
		switch (*at++) {
		case '(':
			a->inner = at;
			at = skip_inner(at);
			break;
		case '=':
			a->token = part_from(&at);
			break;
		case '@':
			a->since = part_from(&at);
			break;
		case '!':
			a->deprecated = part_from(&at);
			break;
		case '?':
			a->optional = true;
			break;
		case '*':
			a->repeated = true;
			break;
		case '+':
			a->token_repeated = true;
			break;
		case ' ':
			return at;
		default:
			return at - 1;
		}
	}
}

static bool at_end(const char *at)
{
	return !*at || *at == ')';
}

static size_t count_arguments(const char *at)
{
	struct argument a;
	size_t n = 0;

	for (; !at_end(at); n++)
		at = read_argument(at, &a);
	return n;
}

static void reply_part_of(struct reply *r, const char *field, const struct part *part)
{
	if (!part->at)
		return;
	reply_text(r, field);
	reply_bulk(r, part->at, part->len);
}

static void reply_name(struct reply *r, const struct argument *a)
{
	char name[64];
	size_t len = a->name.len < sizeof(name) ? a->name.len : sizeof(name);

	/* That of NX is "nx". */
	for (size_t i = 0; i < len; i++)
		name[i] = (char)tolower((unsigned char)a->name.at[i]);
	reply_text(r, "name");
	reply_bulk(r, name, len);
}

static void reply_argument_flags(struct reply *r, const struct argument *a)
{
	size_t n = (size_t)a->optional + a->repeated + a->token_repeated;

	if (!n)
		return;
	reply_text(r, "flags");
	reply_set(r, n);
	if (a->optional)
		reply_status(r, "optional");
	if (a->repeated)
		reply_status(r, "multiple");
	if (a->token_repeated)
		reply_status(r, "multiple_token");
}

static void reply_type(struct reply *r, char letter)
{
	size_t i = 0;

	while (i + 1 < sizeof(type_names) / sizeof(type_names[0]) && type_names[i].letter != letter)
		i++;
	reply_text(r, "type");
	reply_text(r, type_names[i].name);
}

static void reply_arguments(struct reply *r, const char *at);

static void reply_argument(struct reply *r, const struct argument *a)
{
	bool flags = a->optional || a->repeated || a->token_repeated;

	reply_map(r, 2U + (a->key >= 0) + (a->token.at != NULL) + (a->since.at != NULL) +
			     (a->deprecated.at != NULL) + flags + (a->inner != NULL));
	reply_name(r, a);
	reply_type(r, a->type);
	if (a->key >= 0) {
		reply_text(r, "key_spec_index");
		reply_int(r, a->key);
	}
	reply_part_of(r, "token", &a->token);
	reply_part_of(r, "since", &a->since);
	reply_part_of(r, "deprecated_since", &a->deprecated);
	reply_argument_flags(r, a);
	if (a->inner)
		reply_arguments(r, a->inner);
}

static void reply_arguments(struct reply *r, const char *at)
{
	struct argument a;

	reply_text(r, "arguments");
	reply_array(r, count_arguments(at));
	while (!at_end(at)) {
		at = read_argument(at, &a);
		reply_argument(r, &a);
	}
}

/* --- commands --- */

void reply_docs(struct reply *r, const struct command *cmd)
{
	char name[COMMAND_NAME_MAX];
	size_t subs = 0;

	while (cmd->sub && cmd->sub[subs].name)
		subs++;
	reply_text(r, command_full_name(cmd, name));
	reply_map(r, 3U + (cmd->complexity != NULL) + (cmd->arguments[0] != '\0') + (subs != 0));
	reply_text(r, "summary");
	reply_text(r, cmd->summary);
	reply_text(r, "since");
	reply_text(r, cmd->since);
	reply_text(r, "group");
	reply_text(r, cmd->group);
	if (cmd->complexity) {
		reply_text(r, "complexity");
		reply_text(r, cmd->complexity);
	}
	if (cmd->arguments[0])
		reply_arguments(r, cmd->arguments);
	if (!subs)
		return;
	reply_text(r, "subcommands");
	reply_map(r, subs);
	for (size_t i = 0; i < subs; i++)
		reply_docs(r, &cmd->sub[i]);
}

/* --- syntax --- */

static void write_arguments(FILE *out, const char *at, char between);

static void write_value(FILE *out, const struct argument *a)
{
	bool alone = a->type == 'o' && !a->optional && !a->token.at;

	if (a->type == 't') {
		fprintf(out, "%.*s", (int)a->token.len, a->token.at);
	} else if (!a->inner) {
		fprintf(out, "<%.*s>", (int)a->name.len, a->name.at);
	} else {
		fputs(alone ? "<" : "", out);
		write_arguments(out, a->inner, a->type == 'o' ? '|' : ' ');
		fputs(alone ? ">" : "", out);
	}
}

static void write_argument(FILE *out, const struct argument *a)
{
	fputs(a->optional ? "[" : "", out);
	if (a->type != 't' && a->token.at)
		fprintf(out, "%.*s ", (int)a->token.len, a->token.at);
	write_value(out, a);
	if (a->repeated && !a->optional) {
		fputs(" [", out);
		write_value(out, a);
	}
	fprintf(out, "%s%s", a->repeated ? " ..." : "", a->repeated || a->optional ? "]" : "");
}

static void write_arguments(FILE *out, const char *at, char between)
{
	struct argument a;

	while (!at_end(at)) {
		at = read_argument(at, &a);
		write_argument(out, &a);
		if (!at_end(at))
			fputc(between, out);
	}
}

const char *command_syntax(const struct command *cmd, char *text, size_t size)
{
	FILE *out = fmemopen(text, size, "w");

	text[0] = '\0';
	if (!out)
		return text;
	if (cmd->syntax)
		fprintf(out, " %s", cmd->syntax);
	else if (cmd->arguments[0]) {
		fputc(' ', out);
		write_arguments(out, cmd->arguments, ' ');
	}
	fclose(out);
	return text;
}
