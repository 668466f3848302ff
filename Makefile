# SPDX-License-Identifier: BSD-2-Clause
# make            builds into build/          make demo    the whole thing, live
# make check      builds and runs the tests   make bench-quick   the ratios (also bench-redis, -resp, -tcp, -memory, -hitratio, -stages, -pauses, -locked, -durability)
# make check-fast, check-long   two minutes, and all there is: docs/testing.md
# make figures    the thesis' experiments beside Redis and memcached, docs/benchmarks.md
# make format     formats all C files as .clang-format says
# make lint       static checks: C, shell, Python, spelling, line length, licences (scripts/setup.sh lint)
# make fuzz, linear, model   the long forms of three tests; make tsan   data races
# make coverage   lines and branches that the tests reach, for each folder; BPF, too
# make soak       hours of random sizes and kill -9, SECONDS=7200; every slot is accounted for
# make install    DESTDIR= PREFIX=            V=1 shows the commands, WERROR=1 is strict

VERSION := 0.1.0
PREFIX  ?= /usr/local
BUILD   ?= build

CC      ?= cc
CLANG   ?= clang
BPFTOOL ?= $(shell scripts/require.sh --bpftool 2>/dev/null || echo bpftool)
INSTALL ?= install

CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wno-unused-parameter -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
	-Wvla -Wundef
ifeq ($(WERROR),1)
WARN    += -Werror
endif
# GUARDS=1: a checking build, whose slots end with a word that no entry reaches (bpf/layout.h).
CHECKING := $(if $(filter 1,$(GUARDS)),-DXKV_GUARDS)
XCFLAGS := -std=gnu17 $(WARN) -fPIC -D_GNU_SOURCE -DXKV_RELEASE='"$(VERSION)"' -iquote . -iquote loader -I$(BUILD) -MMD -MP $(SAN) $(CHECKING)
XLDFLAGS := $(LDFLAGS) $(SAN)

# The byte order, multi-arch include path and barriers of the BPF code follow the machine that it is built on.
ARCH    := $(shell uname -m | sed 's/x86_64/x86/;s/aarch64/arm64/')
BPFFLAGS := $(BPF_DEFINES) -O2 -g -target bpf -mcpu=v3 -std=gnu17 -D__TARGET_ARCH_$(ARCH) \
	-I/usr/include/$(shell $(CC) -dumpmachine) -iquote . \
	-Wall -Wextra -Wno-unused-parameter -MMD -MP $(if $(filter 1,$(WERROR)),-Werror) $(CHECKING)

ifeq ($(V),1)
Q :=
log = @:
else
Q := @
log = @printf '  %-7s %s\n'
endif

LIB_OBJ   := $(BUILD)/client/libxkv.o
CLI_SRC   := $(wildcard client/*.c loader/doctor/*.c) loader/store/hot_samples.c \
	     loader/store/page_map.c loader/util/files.c
CLI_OBJ   := $(patsubst %.c,$(BUILD)/%.o,$(filter-out client/libxkv.c,$(CLI_SRC)))
XKVD_OBJ  := $(patsubst %.c,$(BUILD)/%.o,$(wildcard loader/*.c loader/*/*.c))
BENCH_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard bench/*.c bench/common/*.c bench/load/*.c bench/frames/*.c))
TOOL_OBJ  := $(patsubst %,$(BUILD)/bench/common/%.o,dist option message)

SSL_LIBS   := $(shell pkg-config --libs openssl 2>/dev/null || echo -lssl -lcrypto)
HTTP_LIBS  := $(shell pkg-config --libs libmicrohttpd 2>/dev/null) # none: no http-port
LUA_LIBS   := -llua5.1-cjson -llua5.1-bitop -llua5.1
XKVD_LIBS  := -lxdp -lbpf -lev -llzf -lsystemd $(LUA_LIBS) $(SSL_LIBS) $(HTTP_LIBS) -lm -lpthread
CLI_LIBS   := -ledit -ljansson -lhiredis -lbpf $(SSL_LIBS) -lm
BENCH_LIBS := -lxdp -lbpf -ljansson -lhiredis -lm -lpthread

BIN := $(addprefix $(BUILD)/,xkvd xkv xkv-bench xkv-exchange xkv-replay xkv-udpserver libxkv.a libxkv.so xkv.bpf.o)

BENCHES := $(addprefix bench-,quick redis resp tcp memory hitratio stages pauses locked upstream \
	durability)

.PHONY: all tests check demo sanitize $(BENCHES) install uninstall clean lint format setup
.SECONDARY: # intermediate objects are kept
all: $(BIN)

# Everything is compiled anew with another GUARDS, or other sanitizers: objects would not fit.
$(BUILD)/checking: always
	@mkdir -p $(@D)
	@echo '$(SAN) $(CHECKING)' | cmp -s - $@ || echo '$(SAN) $(CHECKING)' >$@

$(BUILD)/%.bpf.o: bpf/%.bpf.c $(BUILD)/checking
	$(log) CLANG $@
	@mkdir -p $(@D)
	$(Q)$(CLANG) $(BPFFLAGS) -c $< -o $@

# Of the test bed and of the benchmarks.
$(BUILD)/%.bpf.o: scripts/%.bpf.c $(BUILD)/checking
	$(log) CLANG $@
	@mkdir -p $(@D)
	$(Q)$(CLANG) $(BPFFLAGS) -c $< -o $@

$(BUILD)/bench/bpf/%.bpf.o: bench/bpf/%.bpf.c $(BUILD)/checking
	$(log) CLANG $@
	@mkdir -p $(@D)
	$(Q)$(CLANG) $(BPFFLAGS) -c $< -o $@

$(BUILD)/%.skel.h: $(BUILD)/%.bpf.o
	$(log) SKEL $@
	$(Q)$(BPFTOOL) gen skeleton $< name $(subst -,_,$(basename $(basename $(@F))))_bpf > $@.tmp && mv $@.tmp $@

$(BUILD)/%.o: %.c $(BUILD)/checking
	$(log) CC $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(XCFLAGS) $(CFLAGS) -c $< -o $@

$(XKVD_OBJ): | $(BUILD)/xkv.skel.h $(BUILD)/tcp.skel.h
$(BUILD)/loader/kernel/bpf.o: $(BUILD)/xkv.skel.h
$(BUILD)/loader/kernel/tcp.o: $(BUILD)/tcp.skel.h

# Compiled anew when the library has come or gone.
$(BUILD)/loader/http/http.o: XCFLAGS += $(if $(HTTP_LIBS),-DXKV_HTTP)
$(BUILD)/loader/http/http.o: loader/http/console.html
$(BUILD)/loader/http/http.o: $(BUILD)/http.libs
$(BUILD)/http.libs: always
	@mkdir -p $(@D)
	@echo '$(HTTP_LIBS)' | cmp -s - $@ || echo '$(HTTP_LIBS)' >$@
.PHONY: always

$(filter-out $(BUILD)/bench/common/%,$(BENCH_OBJ)): | \
	$(patsubst %.bpf.c,$(BUILD)/%.skel.h,$(wildcard bench/bpf/*.bpf.c))

$(BUILD)/libxkv.a: $(LIB_OBJ)
	$(log) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libxkv.so: $(LIB_OBJ) client/libxkv.map
	$(log) LD $@
	$(Q)$(CC) -shared -Wl,-soname,libxkv.so.0,--version-script=client/libxkv.map \
		$(XLDFLAGS) $(LIB_OBJ) -o $@

$(BUILD)/xkv: $(CLI_OBJ) $(BUILD)/libxkv.a
	$(log) LD $@
	$(Q)$(CC) $(XLDFLAGS) $^ -o $@ $(CLI_LIBS)

$(BUILD)/xkvd: $(XKVD_OBJ)
	$(log) LD $@
	$(Q)$(CC) $(XLDFLAGS) $^ -o $@ $(XKVD_LIBS)

$(BUILD)/xkv-bench: $(BENCH_OBJ)
	$(log) LD $@
	$(Q)$(CC) $(XLDFLAGS) $^ -o $@ $(BENCH_LIBS)

$(BUILD)/xkv-replay: $(BUILD)/bench/tools/replay.o $(TOOL_OBJ)
	$(log) LD $@
	$(Q)$(CC) $(XLDFLAGS) $^ -o $@ -lhiredis -lm

$(BUILD)/xkv-exchange: $(BUILD)/bench/tools/exchange.o
	$(log) LD $@
	$(Q)$(CC) $(XLDFLAGS) $^ -o $@

$(BUILD)/xkv-udpserver: $(BUILD)/bench/tools/udpserver.o $(TOOL_OBJ)
	$(log) LD $@
	$(Q)$(CC) $(XLDFLAGS) $^ -o $@ -lm -lpthread

include tests/tests.mk

lint:
	@scripts/lint

format:
	@git ls-files -z '*.c' '*.h' | xargs -0 clang-format-14 -i

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD) \( -path $(BUILD)/deb -o -path $(BUILD)/rpm \) -prune -o \
	-name '*.d' -type f -print 2>/dev/null)
