// SPDX-License-Identifier: BSD-2-Clause

module xkv/linear

go 1.19

require github.com/anishathalye/porcupine v1.3.1
