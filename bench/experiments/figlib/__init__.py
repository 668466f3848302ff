# SPDX-License-Identifier: BSD-2-Clause
"""What bench/experiments/figures.py is made of, in the order in which a figure comes about:

experiments  what is measured, as data; the thesis' numbers
place        where: the test bed or a NIC with a remote client; which CPUs; CPU time
systems      the servers under test
measure      one measurement: load generator, server's CPU time
runner       the rounds of an experiment
summary      medians and ranges
plots, tables, document   what is written
"""
