/work/wt-tcp26h/pass.bpf.o: scripts/pass.bpf.c
