# SPDX-License-Identifier: BSD-2-Clause
# make fuzz    broken frames through the XDP program, for some minutes; as root; then in bulks.
#              FUZZ_FRAMES=n FUZZ_SEED=n
# `make check` runs fewer of them (tests/fuzz/test_fuzz_packet.sh).

FUZZ_FRAMES ?= 10000000
FUZZ_SEED   ?= $(shell date +%s)

.PHONY: fuzz
fuzz: $(BUILD)/tests/fuzz_packet
	$(BUILD)/tests/fuzz_packet $(FUZZ_FRAMES) $(FUZZ_SEED)
	XKV_TEST_BATCH=1 $(BUILD)/tests/fuzz_packet $(FUZZ_FRAMES) $(FUZZ_SEED)
