# SPDX-License-Identifier: BSD-2-Clause
# make coverage    builds into BUILD/cov with gcov's counters and, for the BPF programs, with
#                  clang's; runs the tests and prints lines and branches of each folder; as root.
#                  COVERAGE_TESTS='unit resp' runs these only.  BUILD/cov/files.txt has each file,
#                  functions.txt what no test enters.
# Needs gcovr and llvm: scripts/setup.sh coverage.

# Not what is long or random.  Programs that a test runs as another user cannot write their counts:
# libgcov shall not say so where the test reads.
COVERAGE_TESTS ?= unit packet store resp bench tools test_fuzz_packet.sh \
		  $(notdir $(wildcard tests/e2e/test_e2e_*.py))
COVERAGE_FLAGS := COVERAGE=1 SAN='--coverage -fprofile-update=atomic' CFLAGS='-O0 -g'
COVERAGE_PIN   := /sys/fs/bpf/xkv-coverage

.PHONY: coverage
coverage:
	@$(MAKE) --no-print-directory $(JOBS) BUILD=$(BUILD)/cov $(COVERAGE_FLAGS) all tests
	@find $(BUILD)/cov -name '*.gcda' -delete
	@tests/coverage/bpf.py make-map $(BUILD)/cov/xkv.bpf.o $(COVERAGE_PIN)
	@GCOV_ERROR_FILE=/dev/null tests/run --build $(BUILD)/cov $(COVERAGE_TESTS); status=$$?; \
		tests/coverage/bpf.py profile $(BUILD)/cov/xkv.bpf.o $(COVERAGE_PIN); \
		rm -f $(COVERAGE_PIN); tests/coverage/report.py $(BUILD)/cov; \
		$(give_back); exit $$status

ifeq ($(COVERAGE),1)
XLDFLAGS += -Wl,--wrap=bpf_map__set_pin_path,--wrap=_exit
$(BUILD)/xkvd $(TEST_BIN): $(BUILD)/tests/coverage/wrap.o

$(BUILD)/xkv.bpf.o: bpf/xkv.bpf.c tests/coverage/bpf.py
	$(log) CLANG $@
	@mkdir -p $(@D)
	$(Q)tests/coverage/bpf.py build $@ $(CLANG) $(BPFFLAGS) $<
endif
