/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xkv, the command line client: reads options and environment, then runs the command, or the prompt
 * if there is none.  docs/xkv.1 is its manual.
 */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "check.h"
#include "cli.h"

#define INPUT_MAX (1U << 20) /* the longest value of the store */

enum {
	OPT_TIMEOUT = 256,
	OPT_DURABLE,
	OPT_TOKEN,
	OPT_JSON,
	OPT_RAW,
	OPT_NO_RAW,
	OPT_USER,
	OPT_PASS_FILE,
	OPT_PIN_DIR,
	OPT_TLS,
	OPT_CACERT,
	OPT_CACERTDIR,
	OPT_CERT,
	OPT_KEY,
	OPT_SNI,
	OPT_INSECURE,
	OPT_HELP,
	OPT_VERSION
};

/* The source of a value that is not in the command line. */
struct input {
	const char *path; /* NULL = none, "-" = standard input */
	char *data;
	size_t len;
};

static void print_usage(FILE *to)
{
	fputs("usage: xkv [OPTION...] [COMMAND [ARGUMENT...]]\n"
	      "\n"
	      "  -h HOST        server, address or name (default: 127.0.0.1; XKV_HOST)\n"
	      "  -p PORT        server port, UDP and TCP (default: 6379; XKV_PORT)\n"
	      "  -n DB          database of all keys (default: 0)\n"
	      "  -a PASSWORD    password for commands over TCP: stats, save, watch, top, events...\n"
	      "                 (default: XKVCLI_AUTH)\n"
	      "  --user NAME    user for them (default: XKVCLI_USER, or the user `default`)\n"
	      "  --pass-file F  file whose first line is the password for them\n"
	      "  -s SOCKET      Unix socket for them, instead of TCP\n"
	      "  --tls          TLS for them; --cacert FILE, --cacertdir DIR: the authorities to\n"
	      "                 trust; --cert FILE, --key FILE: the client's certificate;\n"
	      "                 --sni NAME; --insecure: any certificate will do\n"
	      "  --token HEX    token for requests over UDP, 32 hex digits (default: XKV_TOKEN)\n"
	      "  --durable      wait until the server's disk has what was changed\n"
	      "  --timeout MS   time to wait for a reply, in milliseconds (default: 1000)\n"
	      "  --pin-dir DIR  check, hot, top: where the maps are pinned\n"
	      "                 (default: " CHECK_PIN_DIR ")\n"
	      "  -x             read the value of the command from standard input\n"
	      "  -f FILE        read the value of the command from a file\n"
	      "  -i SECONDS     watch, top: interval between reads (default: 1)\n"
	      "  -r COUNT       watch, top: number of reads; events: of events (default: no limit)\n"
	      "  --json         print results and errors as JSON, one object per line\n"
	      "  --raw          print values unchanged, also on a terminal\n"
	      "  --no-raw       print values quoted and escaped, also in a pipe\n"
	      "  --help         print this help and exit\n"
	      "  --version      print the version and exit\n"
	      "\n"
	      "Without a command: a prompt or, if standard input is not a terminal, the\n"
	      "commands that it contains, one per line.\n"
	      "Exit status: 0 success, 1 no such key or condition not met, 2 usage error,\n"
	      "3 no reply, 4 error from the server.\n"
	      "\n",
	      to);
}

/* ---- values of options ------------------------------------------------ */

/* Prints which option is wrong, and exits. */
static void bad_option(const char *name, const char *text, const char *want)
{
	fprintf(stderr, "xkv: %s '%s': %s\n", name, text, want);
	exit(EXIT_USAGE);
}

static unsigned long parse_number(const char *name, const char *text, unsigned long min,
				  unsigned long max)
{
	char want[64], *end;
	unsigned long n;

	errno = 0;
	n = strtoul(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end || errno || n < min || n > max) {
		snprintf(want, sizeof(want), "a number from %lu to %lu is needed", min, max);
		bad_option(name, text, want);
	}
	return n;
}

static double parse_interval(const char *text)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end || !(seconds >= 0.001 && seconds <= 86400))
		bad_option("-i", text, "seconds from 0.001 to 86400 are needed");
	return seconds;
}

/* The error message does not contain the token, which is a secret. */
static void parse_token(struct cli *c, const char *name, const char *text)
{
	bool good = strlen(text) == 2 * XKV_TOKEN_BYTES;

	for (size_t i = 0; good && i < XKV_TOKEN_BYTES; i++) {
		char hex[3] = { text[2 * i], text[2 * i + 1], 0 };

		good = isxdigit((unsigned char)hex[0]) && isxdigit((unsigned char)hex[1]);
		c->token[i] = (unsigned char)strtoul(hex, NULL, 16);
	}
	if (!good) {
		fprintf(stderr, "xkv: %s: a token is %d hex digits\n", name, 2 * XKV_TOKEN_BYTES);
		exit(EXIT_USAGE);
	}
	c->has_token = true;
}

static void from_environment(struct cli *c)
{
	const char *host = getenv("XKV_HOST"), *port = getenv("XKV_PORT"),
		   *token = getenv("XKV_TOKEN"), *password = getenv("XKVCLI_AUTH"),
		   *user = getenv("XKVCLI_USER");

	if (password && *password)
		c->password = password;
	if (user && *user)
		c->user = user;
	if (host && *host)
		c->host = host;
	if (port && *port)
		c->port = (unsigned int)parse_number("XKV_PORT", port, 1, 65535);
	if (token && *token)
		parse_token(c, "XKV_TOKEN", token);
}

/* The first line of the file, like --pass-file of other clients.  Kept until the program ends. */
static const char *read_password(const char *path)
{
	FILE *file = fopen(path, "re");
	static char *line;
	size_t size = 0;
	ssize_t len;

	free(line); /* of an option before */
	line = NULL;
	if (!file)
		bad_option("--pass-file", path, strerror(errno));
	errno = 0;
	len = getline(&line, &size, file);
	if (len < 0 && errno)
		bad_option("--pass-file", path, strerror(errno));
	if (len < 0 || !strcspn(line, "\r\n"))
		bad_option("--pass-file", path, "is empty");
	fclose(file);
	line[strcspn(line, "\r\n")] = 0;
	return line;
}

/* An option of TLS for commands over TCP: whether it was one. */
static bool take_tls_option(struct cli_tls *t, int opt)
{
	switch (opt) {
	case OPT_TLS:
		t->on = true;
		return true;
	case OPT_CACERT:
		t->cacert = optarg;
		return true;
	case OPT_CACERTDIR:
		t->cacertdir = optarg;
		return true;
	case OPT_CERT:
		t->cert = optarg;
		return true;
	case OPT_KEY:
		t->key = optarg;
		return true;
	case OPT_SNI:
		t->sni = optarg;
		return true;
	case OPT_INSECURE:
		t->insecure = true;
		return true;
	default:
		return false;
	}
}

static void take_option(struct cli *c, struct input *in, int opt)
{
	if (take_tls_option(&c->tls, opt))
		return;
	switch (opt) {
	case 'h':
		c->host = optarg;
		break;
	case 'p':
		c->port = (unsigned int)parse_number("-p", optarg, 1, 65535);
		break;
	case 'n':
		c->database = (unsigned int)parse_number("-n", optarg, 0, XKV_DATABASE_MAX);
		break;
	case 'a':
		c->password = optarg;
		break;
	case 's':
		c->socket = optarg;
		break;
	case 'x':
		in->path = "-";
		break;
	case 'f':
		in->path = optarg;
		break;
	case 'i':
		c->interval = parse_interval(optarg);
		break;
	case 'r':
		c->looks = parse_number("-r", optarg, 1, 1000000000);
		break;
	case OPT_TIMEOUT:
		c->timeout_ms = (unsigned int)parse_number("--timeout", optarg, 1, 86400000);
		break;
	case OPT_DURABLE:
		c->durable = true;
		break;
	case OPT_TOKEN:
		parse_token(c, "--token", optarg);
		break;
	case OPT_USER:
		c->user = optarg;
		break;
	case OPT_PIN_DIR:
		c->pin_dir = optarg;
		break;
	case OPT_PASS_FILE:
		c->password = read_password(optarg);
		break;
	case OPT_JSON:
		c->style = STYLE_JSON;
		break;
	case OPT_RAW:
		c->style = STYLE_RAW;
		break;
	case OPT_NO_RAW:
		c->style = STYLE_QUOTED;
		break;
	case OPT_HELP:
		print_usage(stdout);
		exit(command_help(NULL));
	case OPT_VERSION:
		puts("xkv " XKV_RELEASE);
		exit(EXIT_DONE);
	default:
		fputs("xkv: `xkv --help` lists the options\n", stderr);
		exit(EXIT_USAGE);
	}
}

static void parse_options(struct cli *c, struct input *in, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "timeout", required_argument, NULL, OPT_TIMEOUT },
		{ "durable", no_argument, NULL, OPT_DURABLE },
		{ "token", required_argument, NULL, OPT_TOKEN },
		{ "user", required_argument, NULL, OPT_USER },
		{ "pin-dir", required_argument, NULL, OPT_PIN_DIR },
		{ "pass-file", required_argument, NULL, OPT_PASS_FILE },
		{ "tls", no_argument, NULL, OPT_TLS },
		{ "cacert", required_argument, NULL, OPT_CACERT },
		{ "cacertdir", required_argument, NULL, OPT_CACERTDIR },
		{ "cert", required_argument, NULL, OPT_CERT },
		{ "key", required_argument, NULL, OPT_KEY },
		{ "sni", required_argument, NULL, OPT_SNI },
		{ "insecure", no_argument, NULL, OPT_INSECURE },
		{ "json", no_argument, NULL, OPT_JSON },
		{ "raw", no_argument, NULL, OPT_RAW },
		{ "no-raw", no_argument, NULL, OPT_NO_RAW },
		{ "help", no_argument, NULL, OPT_HELP },
		{ "version", no_argument, NULL, OPT_VERSION },
		{ NULL, 0, NULL, 0 },
	};
	int opt;

	from_environment(c);
	/* "+": words after the command are not options of xkv; a value may be -1 */
	while ((opt = getopt_long(argc, argv, "+h:p:n:a:s:xf:i:r:", longs, NULL)) != -1)
		take_option(c, in, opt);
}

/* ---- the value from a file or from standard input --------------------- */

static void read_stream(struct input *in, FILE *stream)
{
	size_t got;

	in->data = malloc(INPUT_MAX + 2);
	if (!in->data)
		bad_option("-f", in->path, "out of memory");
	do {
		got = fread(in->data + in->len, 1, INPUT_MAX + 1 - in->len, stream);
		in->len += got;
	} while (got);
	if (ferror(stream))
		bad_option("-f", in->path, strerror(errno));
	if (in->len > INPUT_MAX)
		bad_option("-f", in->path, "a value has at most 1 MiB");
	in->data[in->len] = 0;
}

static void read_input(struct input *in)
{
	FILE *stream = stdin;

	if (strcmp(in->path, "-") != 0)
		stream = fopen(in->path, "re");
	if (!stream)
		bad_option("-f", in->path, strerror(errno));
	read_stream(in, stream);
	if (stream != stdin)
		fclose(stream);
}

/* Is it a command with one value, which follows its key? */
static bool takes_value(const struct word *command)
{
	static const char *const names[] = { "set", "add", "replace", "append" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcasecmp(command->data, names[i]) == 0)
			return true;
	return false;
}

/* `set KEY -` and `set KEY -f FILE`: removes these words and records the source of the value. */
static int take_input_words(struct input *in, int argc, struct word *argv)
{
	int words = 0;

	if (argc < 3 || !takes_value(&argv[0]) || in->path)
		return argc;
	if (strcmp(argv[2].data, "-") == 0) {
		in->path = "-";
		words = 1;
	} else if (argc > 3 && strcmp(argv[2].data, "-f") == 0) {
		in->path = argv[3].data;
		words = 2;
	}
	memmove(argv + 2, argv + 2 + words, (size_t)(argc - 2 - words) * sizeof(*argv));
	return argc - words;
}

/* Inserts the value after the key, or at the end of other commands, as redis-cli does. */
static int insert_input(const struct input *in, int argc, struct word *argv)
{
	int at = takes_value(&argv[0]) && argc > 2 ? 2 : argc;

	memmove(argv + at + 1, argv + at, (size_t)(argc - at) * sizeof(*argv));
	argv[at] = (struct word){ in->data, in->len };
	return argc + 1;
}

static int run_once(struct cli *c, struct input *in, int argc, char **argv)
{
	struct word *words = calloc((size_t)argc + 2, sizeof(*words));
	int code;

	if (!words)
		return fail_xkv(c, XKV_E_OUT_OF_MEMORY);
	for (int i = 0; i < argc; i++)
		words[i] = (struct word){ argv[i], strlen(argv[i]) };
	argc = take_input_words(in, argc, words);
	if (in->path) {
		read_input(in);
		argc = insert_input(in, argc, words);
	}
	code = command_run(c, argc, words);
	free(words);
	free(in->data);
	return code;
}

int main(int argc, char **argv)
{
	struct cli c = {
		.host = "127.0.0.1", .port = XKV_PORT, .pin_dir = CHECK_PIN_DIR, .interval = 1
	};
	struct input in = { 0 };
	int code;

	/* the prompt drops what it cannot decode; all terminals of today have UTF-8 */
	if (!setlocale(LC_CTYPE, "C.UTF-8"))
		setlocale(LC_CTYPE, "");
	c.style = isatty(STDOUT_FILENO) ? STYLE_QUOTED : STYLE_RAW;
	parse_options(&c, &in, argc, argv);
	if (optind < argc)
		code = run_once(&c, &in, argc - optind, argv + optind);
	else if (in.path)
		code = fail(&c, EXIT_USAGE, "-x and -f need a command that takes a value");
	else
		code = prompt_run(&c);
	xkv_close(c.h);
	/* fail if the output could not be written: full disk or closed pipe */
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "xkv: cannot write the result: %s\n", strerror(errno));
		return EXIT_SERVER;
	}
	return code;
}
