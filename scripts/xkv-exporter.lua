-- SPDX-License-Identifier: BSD-2-Clause
-- The figures of INFO xkv for Prometheus: redis_exporter -script xkv-exporter.lua
-- makes redis_script_values{key="xkv_..."} of them.  Its user needs +info +eval.
local result = {}
for name, value in string.gmatch(redis.call("INFO", "xkv"), "([%w_]+):([%d.]+)\r\n") do
	result[#result + 1] = name
	result[#result + 1] = value
end
return result
