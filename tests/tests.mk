# SPDX-License-Identifier: BSD-2-Clause
# Building and running the tests, the demo and the quick figures; installation
# stands in scripts/install.mk.  Included by the main Makefile.

include scripts/install.mk
include scripts/packages.mk
include tests/fuzz/fuzz.mk

SAN_FLAGS := -fsanitize=address,undefined -fno-omit-frame-pointer
JOBS      := $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
# What `make check` builds with: warnings are errors in CI.
STRICT    := $(if $(CI),1,$(WERROR))

# The client side of the test bed needs it to receive what XDP_TX sends.
all: $(BUILD)/pass.bpf.o

# A C test (test_*.c), and a helper that other tests run, is one file with a main(), and becomes
# BUILD/tests/NAME whatever folder it is in.  It is linked with the parts that it includes from: files
# of tests/ without a main(), and archives of xkvd's, the client's and the load generator's objects, so
# that only what it calls comes along.
# tests/common/userstore.c is the store on the engine in user space (engine.h), without BPF.
TEST_LIBS  := -lcmocka -lhiredis $(XKVD_LIBS) $(CLI_LIBS) -lm
TEST_C     := $(wildcard tests/*.c tests/*/*.c)
TEST_MAIN  := $(shell grep -l '^int main\b' $(TEST_C) 2>/dev/null)
TEST_BIN   := $(addprefix $(BUILD)/tests/,$(basename $(notdir $(TEST_MAIN))))
TEST_PARTS := $(basename $(filter-out $(TEST_MAIN),$(TEST_C)))
# "FILE.c:HEADER" for each line that includes one.
INCLUDED   := $(shell grep -oE '^\#include "[^"]+' $(TEST_C) | sed 's/:\#include "/:/')
includes    = $(if $(filter $(addprefix $(1).c:,$(2)),$(INCLUDED)),$(3))
parts       = $(foreach p,$(TEST_PARTS),$(call includes,$(1),$(notdir $(p)).h,$(BUILD)/$(p).o)) \
	      $(call includes,$(1),userstore.h,$(ENGINE)) \
	      $(call includes,$(1),bench/bpf/% bench/frames/% bench/load/%, \
			$(BUILD)/tests/bench.a) \
	      $(call includes,$(1),bench/common/%,$(BUILD)/tests/bench-common.a) \
	      $(call includes,$(1),client/% xdpbed.h,$(BUILD)/tests/client.a) \
	      $(call includes,$(1),loader/% userstore.h,$(BUILD)/tests/loader.a)

ENGINE      = $(BUILD)/tests/common/engine.o $(BUILD)/tests/common/userbpf.o

tests: $(TEST_BIN) $(BUILD)/tests/e2e/filters.bpf.o

WITH_MAIN   := $(shell grep -l '^int main\b' loader/*.c loader/*/*.c client/*.c bench/*.c 2>/dev/null)
without_main = $(filter-out $(WITH_MAIN:%.c=$(BUILD)/%.o),$(1))
$(BUILD)/tests/loader.a: $(call without_main,$(XKVD_OBJ))
$(BUILD)/tests/client.a: $(call without_main,$(LIB_OBJ) $(CLI_OBJ))
$(BUILD)/tests/bench.a: $(call without_main,$(BENCH_OBJ))
$(BUILD)/tests/bench-common.a: $(filter $(BUILD)/bench/common/%,$(BENCH_OBJ))
$(BUILD)/tests/%.a:
	@mkdir -p $(@D)
	$(log) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

define test_program
$$(BUILD)/tests/$(notdir $(1)): $$(BUILD)/$(1).o $(call parts,$(1))
	$$(log) LD $$@
	$$(Q)$$(CC) $$(XLDFLAGS) $$^ -o $$@ $$(TEST_LIBS)
endef
$(foreach t,$(basename $(TEST_MAIN)),$(eval $(call test_program,$(t))))

# The BPF programs with something of a test in them.
$(BUILD)/tests/%.bpf.o: tests/%.bpf.c $(BUILD)/checking
	$(log) CLANG $@
	@mkdir -p $(@D)
	$(Q)$(CLANG) $(BPFFLAGS) -c $< -o $@

$(BUILD)/tests/packet/test_commits.o: $(BUILD)/tests/packet/commits.skel.h
$(BUILD)/tests/test_commits: private XLDFLAGS += -Wl,--wrap=bpf_object__open_mem
$(BUILD)/tests/test_faults: private XLDFLAGS += $(FAULTS:%=-Wl,--wrap=%)
FAULTS := mmap bpf_map_create bpf_map_update_elem bpf_map_update_batch
$(BUILD)/tests/test_libxkv_once: private XLDFLAGS += -Wl,--wrap=clock_gettime,--wrap=send

$(BUILD)/tests/test_powercut: private XLDFLAGS += $(POWERCUT:%=-Wl,--wrap=%)
POWERCUT := openat write pwrite fsync fdatasync ftruncate renameat unlinkat close \
	rdb_write_key

$(BUILD)/tests/respd $(BUILD)/tests/test_snapshot $(BUILD)/tests/test_writelog: \
	private XLDFLAGS += $(STOREFAULTS:%=-Wl,--wrap=%)
STOREFAULTS := store_scan_all store_do store_run store_cut loading_goes_on
$(BUILD)/tests/respd: private XLDFLAGS += -Wl,--wrap=time

# The BPF programs for user space: what is global in them stays among them.  ThreadSanitizer would
# find what they mean to do: read what others write, and look whether it has changed.
ENGINE_FLAGS  := -D__bpf__ -D__TARGET_ARCH_$(ARCH) -Itests/common/engine \
	-Wno-unused-parameter -Wno-attributes -Wno-address-of-packed-member \
	-Wno-implicit-fallthrough -Wno-missing-prototypes -Wno-strict-prototypes
ENGINE_GLOBAL := engine_maps engine_map_count engine_run
$(BUILD)/tests/common/engine.o: tests/common/engine.c $(BUILD)/checking
	$(log) CC $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(filter-out -fsanitize=thread,$(XCFLAGS)) -iquote tests/common $(CFLAGS) \
		$(ENGINE_FLAGS) -c $< -o $@
	$(Q)objcopy $(ENGINE_GLOBAL:%=-G %) $@

# Some tests may include skeletons.
$(BUILD)/tests/%.o: tests/%.c $(BUILD)/checking | $(BUILD)/xkv.skel.h
	$(log) CC $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(XCFLAGS) -iquote tests/common $(CFLAGS) -c $< -o $@

# Installs what is missing as root; as another user it says what is missing.
setup:
	@scripts/setup.sh

# What was built under sudo is the user's.
give_back = [ -z "$$SUDO_UID" ] || chown -R "$$SUDO_UID:$$SUDO_GID" $(BUILD) $(1)

# The sub-make looks for bpftool anew, after the packages are there.
demo:
	@scripts/setup.sh build demo
	@XKV_BUILD=$(BUILD) scripts/demo.sh
	@$(give_back)

# Three tiers, docs/testing.md.  All builds are tested in one run, so that there is one sum at its end.
.PHONY: check-fast check-long check-kernels
check-fast: setup
	@scripts/require.sh tools
	@$(MAKE) --no-print-directory $(JOBS) WERROR=$(STRICT) all tests
	@tests/run --tier fast --build $(BUILD); status=$$?; $(give_back); exit $$status

check check-long: setup
	@scripts/require.sh tools
	@$(MAKE) --no-print-directory $(JOBS) WERROR=$(STRICT) all \
		$(if $(filter check,$@),unseen sanitize-check,tests sanitize)
	@tests/run --tier $(@:check-%=%) $(if $(CI),--again) --build $(BUILD) --build $(BUILD)/san; \
		status=$$?; $(give_back); exit $$status
	@[ $@ = check ] || $(MAKE) --no-print-directory threads driven tsan linear model fuzz soak \
		check-kernels SECONDS=$(SOAK_SECONDS)

# Half an hour of what `make soak` does for two; the kernels that apt offers, in an emulator
# (KERNELS="linux-image-..." or .deb files: others), with the BPF programs of further compilers.
SOAK_SECONDS ?= 1800
check-kernels: all tests
	@scripts/setup.sh kernels
	@XKV_BUILD=$(BUILD) scripts/boot-kernel.sh $(KERNELS)

# Compare-and-exchanges in vain, on 16 CPUs of an emulated machine: docs/performance.md
.PHONY: exchanges
exchanges:
	@scripts/setup.sh kernels
	@$(MAKE) --no-print-directory $(JOBS) BUILD=$(BUILD)/count \
		BPF_DEFINES=-DXKV_COUNT_EXCHANGES all $(BUILD)/count/tests/stress
	@XKV_BUILD=$(BUILD)/count XKV_GUEST_CPUS=16 scripts/boot-kernel.sh --exchanges $(KERNELS); \
		status=$$?; $(give_back); exit $$status

# Is there one order of all that clients did to a key?  Some minutes, as root; needs Go.
LINEAR_SECONDS ?= 240
.PHONY: linear
linear: all
	@XKV_LINEAR_SECONDS=$(LINEAR_SECONDS) tests/run -v --build $(BUILD) test_linear.py

# Random sizes, evictions and kill -9 for SECONDS, and after each minute every slot is accounted for; as root.
.PHONY: soak
soak: SECONDS = 7200
soak: all
	@XKV_BUILD=$(BUILD) $(or $(PYTHON),/usr/bin/python3) tests/e2e/soak.py --seconds $(SECONDS) $(SOAK_FLAGS)

# Every case of the models of tests/formal/model, with those that take long.
.PHONY: model
model:
	@tests/formal/test_spin.py

# -O1 and line numbers: built in two thirds of the time of -O2 -g, and slower by 5 %.  Without the
# analysis of -O2 gcc takes texts for longer than they can be: the plain build looks at that.
# sanitize-check: only what `make check` runs of it.
.PHONY: sanitize-check
sanitize: SANITIZED := all tests
sanitize-check: SANITIZED := seen
sanitize sanitize-check:
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/san GUARDS=1 SAN='$(SAN_FLAGS)' \
		CFLAGS='-O1 -g1 -Wno-format-truncation' $(SANITIZED)

# What of `tests` is run with sanitizers (seen), and without (unseen): UNSEEN of tests/run, as no
# sanitizer sees the programs of packet/, and bench/ is no server; what is marked plain; and what
# tests start.
.PHONY: seen unseen
UNSEEN := tests/packet/% tests/bench/%
programs = $(addprefix $(BUILD)/tests/,$(basename $(notdir $(1))))
seen: $(addprefix $(BUILD)/,xkvd xkv libxkv.so pass.bpf.o) \
	$(call programs,$(filter-out $(UNSEEN),$(TEST_MAIN)))
unseen: $(BUILD)/tests/e2e/filters.bpf.o $(call programs,$(filter $(UNSEEN),$(TEST_MAIN)) \
	$(shell grep -l '^/\* tests/run: plain' $(TEST_MAIN)) \
	$(foreach main,$(TEST_MAIN),$(if $(filter test_%,$(notdir $(main))),,$(main))))

# The tests of RESP once more, on servers with several threads.
.PHONY: threads
threads: all tests
	@XKV_OPTIONS="--io-threads 3" tests/run --build $(BUILD) resp; status=$$?; \
		$(give_back); exit $$status

# With the driver answering over TCP (tcp-fast-path), which the tests do not know.
.PHONY: driven
driven: all tests
	@XKV_TEST_DRIVEN=1 tests/run --build $(BUILD) resp clients test_bank.py test_linear.py; \
		status=$$?; $(give_back); exit $$status

# Data races between threads of user space; what BPF programs do to the shared maps it does not see.
.PHONY: tsan
tsan:
	@$(MAKE) --no-print-directory $(JOBS) BUILD=$(BUILD)/tsan SAN=-fsanitize=thread \
		CFLAGS='-O1 -g -Wno-tsan' all tests
	@tests/run --build $(BUILD)/tsan $(TSAN_TESTS); status=$$?; $(give_back); exit $$status
# Not test_resp.py: it measures memory, of which ThreadSanitizer takes much.
TSAN_TESTS ?= unit store test_snapshot.py test_redis_diff.py test_io_threads.py

# The figures of docs/benchmarks.md and docs/performance.md; as root.  BENCH_FLAGS: options.
$(BENCHES): bench-%: all
	@XKV_BUILD=$(BUILD) bench/experiments/$*.py $(BENCH_FLAGS)

# The thesis' experiments beside Redis and memcached, and what docs/benchmarks.md says of them; as root.
# On a NIC: INTERFACE=eth0 CLIENT='ssh root@client'; FIGURES_FLAGS= is for all other options.
SECONDS ?= 0.25
.PHONY: figures
figures: all
	@XKV_BUILD=$(BUILD) bench/experiments/figures.py --seconds $(SECONDS) $(if $(INTERFACE),--interface $(INTERFACE)) \
		$(if $(CLIENT),--client '$(CLIENT)') $(FIGURES_FLAGS); status=$$?; \
		$(call give_back,bench/results docs/benchmarks.md docs/lab-notes.md docs/figures); exit $$status

include tests/coverage/coverage.mk
