/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernel's helpers for the BPF programs in user space (tests/common/engine.c).  Everything else
 * is libbpf's own header.  Those of packets and iterators fail: nothing runs these programs here.
 */
#ifndef XKV_ENGINE_HELPERS_H
#define XKV_ENGINE_HELPERS_H

#include_next <bpf/bpf_helpers.h>

#include "engine.h"

#undef SEC
#define SEC(name)

#define bpf_map_lookup_elem(map, key)		    engine_lookup(map, key)
#define bpf_map_update_elem(map, key, value, flags) engine_update(map, key, value)
#define bpf_get_smp_processor_id()		    engine_cpu()
#define bpf_ktime_get_ns()			    engine_ns(1)  /* CLOCK_MONOTONIC */
#define bpf_ktime_get_boot_ns()			    engine_ns(7)  /* CLOCK_BOOTTIME */
#define bpf_ktime_get_tai_ns()			    engine_ns(11) /* CLOCK_TAI */
#define bpf_get_prandom_u32()			    engine_random()
#define bpf_loop(most, step, arg, flags)	    engine_loop(most, (void *)(step), arg)
#define bpf_xdp_adjust_head(...)		    engine_none(0, __VA_ARGS__)
#define bpf_xdp_adjust_tail(...)		    engine_none(0, __VA_ARGS__)
#define bpf_xdp_load_bytes(...)			    engine_none(0, __VA_ARGS__)
#define bpf_xdp_store_bytes(...)		    engine_none(0, __VA_ARGS__)
#define bpf_redirect_map(...)			    engine_none(0, __VA_ARGS__)
#define bpf_tail_call(...)			    engine_none(0, __VA_ARGS__)
#define bpf_seq_write(...)			    engine_none(0, __VA_ARGS__)

#endif
