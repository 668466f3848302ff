// SPDX-License-Identifier: BSD-2-Clause
/* See datagram.h. */
#include "datagram.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <string.h>

#define TTL 64

struct headers {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
} __attribute__((packed));

_Static_assert(sizeof(struct headers) == DATAGRAM_HEADERS, "wire format");

/* The ones' complement sum of bytes in memory order, not folded. */
static uint64_t sum_of(const void *bytes, size_t len, uint64_t sum)
{
	const uint8_t *at = bytes;
	uint32_t word;

	for (; len >= sizeof(word); len -= sizeof(word), at += sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		sum += word;
	}
	word = 0;
	memcpy(&word, at, len);
	return sum + word;
}

static uint16_t fold(uint64_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static uint16_t udp_checksum(const struct headers *h, const uint8_t *payload, size_t len)
{
	uint64_t sum = (uint64_t)h->ip.saddr + h->ip.daddr + htons(IPPROTO_UDP) + h->udp.len;
	uint16_t check;

	sum = sum_of(&h->udp, sizeof(h->udp), sum);
	check = fold(sum_of(payload, len, sum));
	return check ? check : 0xffff; /* 0 means that there is none */
}

void datagram_write(const struct datagram_path *path, in_port_t source_port, uint8_t *frame,
		    size_t len)
{
	struct headers h = {
		.eth.h_proto = htons(ETH_P_IP),
		.ip = { .version = 4,
			.ihl = 5,
			.tot_len = htons(sizeof(h.ip) + sizeof(h.udp) + len),
			.frag_off = htons(0x4000), /* don't fragment */
			.ttl = TTL,
			.protocol = IPPROTO_UDP,
			.saddr = path->source.s_addr,
			.daddr = path->ip.s_addr },
		.udp = { .source = source_port,
			 .dest = path->port,
			 .len = htons(sizeof(h.udp) + len) },
	};

	memcpy(h.eth.h_dest, path->mac, ETH_ALEN);
	memcpy(h.eth.h_source, path->source_mac, ETH_ALEN);
	h.ip.check = fold(sum_of(&h.ip, sizeof(h.ip), 0));
	h.udp.check = udp_checksum(&h, frame + sizeof(h), len);
	memcpy(frame, &h, sizeof(h));
}

int datagram_read(const uint8_t *frame, size_t len, in_port_t *to_port)
{
	struct headers h;
	size_t bytes;

	if (len < sizeof(h))
		return -1;
	memcpy(&h, frame, sizeof(h));
	bytes = ntohs(h.udp.len);
	if (h.eth.h_proto != htons(ETH_P_IP) || h.ip.version != 4 || h.ip.ihl != 5 ||
	    h.ip.protocol != IPPROTO_UDP || bytes < sizeof(h.udp) ||
	    bytes - sizeof(h.udp) > len - sizeof(h))
		return -1;
	*to_port = h.udp.dest;
	return bytes - sizeof(h.udp);
}
