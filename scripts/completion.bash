# SPDX-License-Identifier: BSD-2-Clause
# shellcheck shell=bash
#
# Completion of xkv, xkvd, xkv-bench and xkv-snapshot, for bash, and for zsh through scripts/_xkv.
# Options, their arguments and commands are what the programs' --help says, so nothing has to be
# kept in step here.

# The argument of an option, as --help names it: FILE, or yes|no; nothing if it has none.
_xkv_argument() {
	grep -oE -e "(^|[][ ,;(|])$2 [A-Za-z0-9|:,._-]+" <<<"$1" | head -n 1 |
		sed "s/^.*$2 //; s/[,.:]*$//"
}

_xkv_interfaces() {
	local dev
	for dev in /sys/class/net/*; do
		echo "${dev##*/}"
	done
}

# Candidates for an argument of this name.
_xkv_values() {
	local name=$1
	case $name in
	*\|*) compgen -W "${name//|/$'\n'}" -- "$2" ;;
	FILE | F | SOCKET | PATH) compgen -f -- "$2" ;;
	DIR | D) compgen -d -- "$2" ;;
	IF | DEV | INTERFACE) compgen -W "$(_xkv_interfaces)" -- "$2" ;;
	esac
}

# What may follow a command of xkv: the options of its usage, and of each [WORD VALUE|WORD] the
# first words.
_xkv_words() {
	local program=$1 command=$2 usage
	[[ $command != help ]] || _xkv_commands "$("$program" --help 2>/dev/null)"
	[[ $command != doctor ]] || _xkv_interfaces
	usage=$("$program" help "$command" 2>/dev/null | head -n 1)
	grep -oE -e '(^|[ |[])--?[a-z][a-z0-9-]*' <<<"$usage" | tr -d ' |['
	grep -oE '\[[^]]*\]' <<<"$usage" | sed 's/[][|]/\n/g' | sed 's/ .*//' |
		grep -E '^[A-Z][A-Z]+$' |
		grep -vxE 'INTERFACE|COUNT|KEY|SECTION|PATTERN|COMMAND|BY|ARGUMENT'
}

# The table of commands in --help, which begins after its last empty line.
_xkv_commands() {
	awk '!NF { n = 0; next } { line[++n] = $1 }
		END { for (i = 1; i <= n; i++) print line[i] }' <<<"$1"
}

# Runs a command that prints candidates, one a line.
_xkv_offer() {
	local IFS=$'\n'
	# shellcheck disable=SC2207 # zsh has no mapfile
	COMPREPLY=($("$@"))
}

_xkv_complete() {
	local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} help command='' argument i
	local previous=${COMP_WORDS[COMP_CWORD - 1]}
	help=$("$program" --help 2>/dev/null) || return
	COMPREPLY=()
	for ((i = 1; i < COMP_CWORD; i++)); do
		if [[ ${COMP_WORDS[i]} != -* ]]; then
			command=${COMP_WORDS[i]}
			break
		fi
		[[ -z $(_xkv_argument "$help" "${COMP_WORDS[i]}") ]] || i=$((i + 1))
	done
	argument=
	[[ ${program##*/} != xkv || ! $command ]] ||
		help+=$'\n'$("$program" help "$command" 2>/dev/null)
	[[ $previous != -* ]] || argument=$(_xkv_argument "$help" "$previous")
	if [[ $argument ]]; then
		_xkv_offer _xkv_values "$argument" "$current"
	elif [[ ${program##*/} = xkv && $command ]]; then
		_xkv_offer compgen -W "$(_xkv_words "$program" "$command")" -- "$current"
	elif [[ $current = -* ]]; then
		_xkv_offer compgen -W "$(grep -oE -e '--[a-z][a-z0-9-]+' <<<"$help" | sort -u)" \
			-- "$current"
	elif [[ ${program##*/} = xkv ]]; then
		_xkv_offer compgen -W "$(_xkv_commands "$help")" -- "$current"
	elif [[ ${program##*/} = xkv-bench ]]; then
		_xkv_offer compgen -W frames -- "$current"
	elif [[ ${program##*/} = xkvd ]]; then
		_xkv_offer compgen -f -- "$current"
	fi
}

complete -o filenames -F _xkv_complete xkv xkvd xkv-bench xkv-snapshot
