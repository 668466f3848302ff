// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strconv"
	"strings"
)

// A value is made of chunks, "<key/number/length>" and filler that follows from the number, one for
// each SET or APPEND that went into it, perhaps behind a number that INCR has left.  No chunk is
// written twice, so a value tells where each of its bytes comes from: one that is torn, or of another
// key, is seen without asking the checker.

const (
	alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	chunkMin = 24 // room for the head of any chunk
)

// makeChunk returns the chunk with this number, of length bytes (chunkMin at least).
func makeChunk(key int64, number uint64, length int) string {
	if length < chunkMin {
		length = chunkMin
	}
	chunk := make([]byte, 0, length)
	chunk = append(chunk, fmt.Sprintf("<%d/%d/%d>", key, number, length)...)
	x := number*0x9e3779b97f4a7c15 | 1
	for len(chunk) < length {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		chunk = append(chunk, alphabet[x>>58])
	}
	return string(chunk)
}

// describeValue names what a value is made of ("17+#3" is the number 17 with chunk 3 behind it) and
// says whether it is whole and of this key.
func describeValue(key int64, value string) (string, bool) {
	var parts []string
	rest := value
	if end := strings.IndexByte(rest, '<'); end != 0 {
		if end < 0 {
			end = len(rest)
		}
		if _, ok := parseNumber(rest[:end]); !ok && len(rest) > 0 {
			return fmt.Sprintf("%.60q (%d bytes)", value, len(value)), false
		}
		parts, rest = append(parts, rest[:end]), rest[end:]
	}
	for rest != "" {
		var owner int64
		var number uint64
		var length int

		if n, _ := fmt.Sscanf(rest, "<%d/%d/%d>", &owner, &number, &length); n != 3 ||
			length > len(rest) || length < chunkMin ||
			owner != key || rest[:length] != makeChunk(key, number, length) {
			return fmt.Sprintf("%s then %.60q (%d bytes)", strings.Join(parts, "+"), rest, len(value)), false
		}
		parts, rest = append(parts, fmt.Sprintf("#%d", number)), rest[length:]
	}
	return fmt.Sprintf("%s (%d B)", strings.Join(parts, "+"), len(value)), true
}

// parseNumber reads an integer as INCR does: no spaces, no plus, no zeros in front, and no "-0".
func parseNumber(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == text
}
