// SPDX-License-Identifier: BSD-2-Clause
/*
 * Requests over TCP that the driver answers, bpf/flow.bpf.h and bpf/tcp.bpf.c, for Spin: a client,
 * a network that loses, repeats and reorders in both directions, the driver's programs at ingress
 * and egress, the kernel's TCP, and xkvd, which owns the connection.  tests/formal/test_spin.py
 * runs it; docs/model.md says what is left out and what comes of each switch.
 *
 * A request is one byte, and so is a reply: the number of the request.  The client's view of both
 * streams and the kernel's are as in bpf/tcp.h.  An atomic block is what a program does under the
 * lock of the flow, or the kernel under that of the socket.
 *
 * What is checked:
 *  - the n-th request is executed as the n-th, once, whoever does it;
 *  - a place of the stream to the client has one content, however often it is sent;
 *  - the n-th reply that the client reads is that to its n-th request;
 *  - the kernel gets no acknowledgement of what it has not sent, neither does the client;
 *  - when the network loses nothing any more, who repeats what is not acknowledged gets on;
 *  - everybody comes to the end.
 *
 * So many times the network loses, repeats, and a timer ends early: LOSSES, COPIES, EARLY.  PUSHES
 * are messages that no request has asked for.
 */

#ifndef REQUESTS
#define REQUESTS 3
#endif
#ifndef WINDOW /* requests that the client has under way */
#define WINDOW 2
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef COPIES
#define COPIES 0
#endif
#ifndef EARLY
#define EARLY 0
#endif
#ifndef PUSHES
#define PUSHES 0
#endif

#define REPLIES (REQUESTS + PUSHES)
#define PUSH	7
#define NOTHING 6
#define SLOTS	2 /* of the network, in each direction; what finds none is lost */
#define PATIENCE 5 /* timers in a row that may bring nothing */

/* ---- the rules; -D and a name takes one out ---- */

#ifdef NO_POSITION /* xkvd has read and answered all that went up */
#define POSITION_FITS true
#else
#define POSITION_FITS (pos_read == s.seq - eaten && pos_written == to_kernel)
#endif

#ifdef NO_NEXT_BYTE /* it is behind the highest byte that the client has sent */
#define NEXT_BYTE true
#else
#define NEXT_BYTE (s.seq == client_next)
#endif

#ifdef NO_ALL_ACKED /* the client has acknowledged all that was sent (with NO_DISARM) */
#define ALL_ACKED true
#else
#define ALL_ACKED (s.ack == server_next)
#endif

#ifdef NO_REPEAT /* a repeated request gets the kept reply */
#define REPEATED false
#else
#define REPEATED (s.size && s.seq < request_end)
#endif

#ifdef NO_DUPLICATE_ACK /* so does an acknowledgement that lacks it */
#define LACKS false
#else
#define LACKS (!s.size && s.ack == reply_seq)
#endif

#ifdef NO_CAP /* the kernel's bare acknowledgements leave out a request whose reply is not acked */
#define CAPPED false
#else
#define CAPPED (unacked && !s.size)
#endif

#ifdef ONE_OFFSET /* what the kernel repeats from before the last reply keeps its place */
#define BEFORE_REPLY false
#else
#define BEFORE_REPLY (injected && s.seq < injected_at)
#endif

#ifdef PUBLISH_WHEN_READ /* xkvd publishes what it has read before it has answered */
#define PUBLISHES true
#else
#define PUBLISHES (k_read == answered + 1)
#endif

/* ---- the network ---- */

typedef segment { bit used; short seq; bit size; byte val; short ack };
typedef network { segment at[SLOTS] }
network up, down; /* from the client, and to it */
byte losses = LOSSES, copies = COPIES, early = EARLY;

/* ---- the client ---- */

byte c_una, c_next, c_rcv; /* acknowledged, sent, received */
byte c_held = NOTHING;	   /* the byte behind c_rcv, if it came first */
byte c_read;		   /* replies */

/* ---- the flow ---- */

byte eaten, injected;
byte client_next, server_next;
byte request_end, reply_seq, reply_val, reply_len; /* the last ones */
bit unacked, owed;
short owed_seq, owed_ack, kernel_acked;
byte content[REPLIES + 1] = NOTHING; /* by the place in the stream to the client */

/* ---- xkvd ---- */

byte pos_read, pos_written;
bit armed;
byte answered, pushes = PUSHES;
byte executed; /* requests, by xkvd and the driver */

/* ---- the kernel ---- */

byte k_rcv, k_una, k_next, k_written, k_read;
byte k_in[REQUESTS] = NOTHING;
byte k_out[REPLIES];
bit k_ack; /* it has something to acknowledge */
chan ingress = [3] of { bit, short, bit, byte, short }; /* an answer?, seq, size, val, ack */
chan egress = [2] of { short, bit, byte, short };

/* nobody gets on by these: they are how many timers have ended since somebody has */
byte tries;
bit turn; /* whose timer ends next, if it runs: 1 = the kernel's */
bit wrong_request, wrong_reply, two_contents, acks_unsent, hung;

#define ALL_DONE (c_read == REQUESTS && c_una == REQUESTS && !pushes && c_rcv == REPLIES)
#define INJECTED_AT (reply_seq - (injected - reply_len))

inline set(to, used_, seq_, size_, val_, ack_)
{
	to.used = used_;
	to.seq = seq_;
	to.size = size_;
	to.val = val_;
	to.ack = ack_
}

inline put(net, seq_, size_, val_, ack_)
{
	if
	:: !net.at[0].used -> set(net.at[0], 1, seq_, size_, val_, ack_)
	:: net.at[0].used && !net.at[1].used -> set(net.at[1], 1, seq_, size_, val_, ack_)
	:: else
	fi
}

/* Takes a segment out, or a copy of it, in any order. */
inline take(net)
{
	if
	:: net.at[0].used -> i = 0
	:: net.at[1].used -> i = 1
	fi;
	set(s, 0, net.at[i].seq, net.at[i].size, net.at[i].val, net.at[i].ack);
	if
	:: set(net.at[i], 0, 0, 0, 0, 0)
	:: copies -> copies--
	fi;
	i = 0
}

#define SENT(net) (net.at[0].used || net.at[1].used)

inline lose(net)
{
	if
	:: net.at[0].used -> set(net.at[0], 0, 0, 0, 0, 0)
	:: net.at[1].used -> set(net.at[1], 0, 0, 0, 0, 0)
	fi;
	losses--
}

/* What is sent at a place of the stream to the client. */
inline send_down(seq_, size_, val_, ack_)
{
	if
	:: size_ ->
		two_contents = content[seq_] != NOTHING && content[seq_] != val_;
		assert(!two_contents);
		content[seq_] = val_
	:: else
	fi;
	put(down, seq_, size_, val_, ack_)
}

inline forget()
{
	set(s, 0, 0, 0, 0, 0)
}

/* Timers of both sides end in turn, when nothing else can happen; or early. */
inline timer_ends(next)
{
	if
	:: early -> early--
	:: else ->
		turn = next;
		tries = (losses -> 0 : tries + 1);
		hung = tries > PATIENCE;
		assert(!hung)
	fi
}

/* ---- the client and the network ---- */

active proctype client()
{
	segment s;
	byte i;

	do
	:: atomic { c_next < REQUESTS && c_next < c_una + WINDOW ->
		put(up, c_next, 1, c_next, c_rcv);
		c_next++ }
	:: atomic { c_una < c_next && (early || (timeout && (!turn || k_una == k_next))) ->
		timer_ends(1);
		put(up, c_una, 1, c_una, c_rcv) }
	:: atomic { SENT(down) ->
		take(down);
		acks_unsent = s.ack > c_next;
		assert(!acks_unsent);
		if
		:: s.ack > c_una -> c_una = s.ack; tries = 0
		:: else
		fi;
		if
		:: s.size && s.seq == c_rcv + 1 -> c_held = s.val
		:: s.size && s.seq == c_rcv ->
			do
			:: s.val != NOTHING ->
				wrong_reply = s.val != PUSH && s.val != c_read;
				assert(!wrong_reply);
				c_read = c_read + (s.val != PUSH);
				c_rcv++;
				tries = 0;
				s.val = c_held;
				c_held = NOTHING
			:: else -> break
			od
		:: else
		fi;
		if
		:: s.size -> put(up, c_next, 0, 0, c_rcv)
		:: else
		fi;
		forget() }
	:: atomic { losses && SENT(up) -> lose(up) }
	:: atomic { losses && SENT(down) -> lose(down) }
	:: atomic { ALL_DONE -> break }
	od;
	/* the last acknowledgement may be lost */
end:	do
	:: atomic { SENT(down) ->
		take(down);
		if
		:: s.size -> put(up, c_next, 0, 0, c_rcv)
		:: else
		fi;
		forget() }
	:: atomic { losses && SENT(up) -> lose(up) }
	:: atomic { losses && SENT(down) -> lose(down) }
	od
}

/* ---- the driver ---- */

/* The kernel's view of an acknowledgement. */
inline translate_ack(ack_)
{
	if
	:: ack_ >= reply_seq + reply_len -> to_kernel = ack_ - injected
	:: else ->
		to_kernel = (reply_seq < ack_ -> reply_seq : ack_) - (injected - reply_len)
	fi
}

inline answer()
{
	wrong_request = s.val != executed;
	assert(!wrong_request);
	executed++;
	owed = to_kernel != kernel_acked;
	owed_seq = s.seq - eaten;
	owed_ack = to_kernel;
	kernel_acked = to_kernel;
	request_end = s.seq + 1;
	reply_seq = s.ack;
	reply_len = 1;
	reply_val = s.val;
	eaten++;
	injected++;
	client_next = request_end;
	server_next = reply_seq + 1;
	unacked = 1;
	if
	:: owed -> ingress!1, reply_seq, 1, reply_val, request_end
	:: else -> send_down(reply_seq, 1, reply_val, request_end)
	fi
}

inline pass_up()
{
	if
	:: client_next < s.seq + s.size -> client_next = s.seq + s.size
	:: else
	fi;
	if
	:: kernel_acked < to_kernel -> kernel_acked = to_kernel
	:: else
	fi;
	ingress!0, s.seq - eaten, s.size, s.val, to_kernel
}

active proctype from_client()
{
	segment s;
	byte i;
	short to_kernel;

end:	do
	:: atomic { SENT(up) && nfull(ingress) ->
		take(up);
		if
		:: unacked && s.ack >= reply_seq + 1 && s.ack <= server_next -> unacked = 0
		:: else
		fi;
		translate_ack(s.ack);
		if
		:: unacked && (REPEATED || LACKS) ->
			send_down(reply_seq, 1, reply_val, request_end)
		:: else ->
			if
			:: s.size && armed && !unacked && NEXT_BYTE && ALL_ACKED && POSITION_FITS ->
				answer()
			:: else -> pass_up()
			fi
		fi;
		to_kernel = 0;
		forget() }
	od
}

active proctype to_client()
{
	segment s;
	short injected_at;

end:	do
	:: atomic { nempty(egress) && nfull(ingress) ->
		egress?s.seq, s.size, s.val, s.ack;
		injected_at = INJECTED_AT;
		if
		:: s.size && BEFORE_REPLY -> ingress!0, s.ack, 0, 0, injected_at
		:: else ->
			s.seq = s.seq + (BEFORE_REPLY -> injected - reply_len : injected);
			s.ack = s.ack + eaten;
			if
			:: CAPPED && s.ack >= request_end -> s.ack = request_end - 1
			:: else
			fi;
			if
			:: server_next < s.seq + s.size -> server_next = s.seq + s.size
			:: else
			fi;
			send_down(s.seq, s.size, s.val, s.ack)
		fi;
		injected_at = 0;
		forget() }
	od
}

/* ---- the kernel ---- */

/* An answer that comes by is sent, and becomes the acknowledgement that is owed. */
active proctype kernel_receives()
{
	segment s;
	bit is_answer, none;

end:	do
	:: atomic { nempty(ingress) ->
		ingress?is_answer, s.seq, s.size, s.val, s.ack;
		if
		:: is_answer && owed && s.seq == reply_seq ->
			owed = 0;
			send_down(s.seq, s.size, s.val, s.ack);
			s.seq = owed_seq; s.size = 0; s.ack = owed_ack
		:: is_answer && !(owed && s.seq == reply_seq) -> none = 1
		:: else
		fi;
		if
		:: !none ->
			acks_unsent = s.ack > k_next;
			assert(!acks_unsent);
			if
			:: s.ack > k_una -> k_una = s.ack; tries = 0
			:: else
			fi;
			if
			:: s.size ->
				k_ack = 1;
				if
				:: s.seq >= k_rcv -> k_in[s.seq] = s.val
				:: else
				fi;
				do
				:: k_rcv < REQUESTS && k_in[k_rcv] != NOTHING -> k_rcv++; tries = 0
				:: else -> break
				od
			:: else
			fi
		:: else
		fi;
		none = 0; is_answer = 0;
		forget() }
	od
}

active proctype kernel_sends()
{
end:	do
	:: atomic { k_next < k_written && nfull(egress) ->
		egress!k_next, 1, k_out[k_next], k_rcv;
		k_next++;
		k_ack = 0 }
	:: atomic { k_ack && nfull(egress) ->
		egress!k_next, 0, 0, k_rcv;
		k_ack = 0 }
	:: atomic { k_una < k_next && nfull(egress) &&
		    (early || (timeout && (turn || c_una == c_next))) ->
		timer_ends(0);
		egress!k_una, 1, k_out[k_una], k_rcv }
	od
}

/* ---- xkvd ---- */

active proctype owner()
{
	byte val;

end:	do
	:: atomic { k_read < k_rcv ->
		wrong_request = k_in[k_read] != executed;
		assert(!wrong_request);
		k_read++;
		executed++ }
	:: answered < k_read ->
		if
		:: atomic { PUBLISHES -> pos_read = k_read; pos_written = k_written + 1 };
			armed = 1
		:: !(PUBLISHES) -> skip
		fi;
		atomic { k_out[k_written] = k_in[answered]; k_written++; answered++ }
	:: pushes ->
#ifndef NO_DISARM /* who sends what no request has asked for is not armed */
		armed = 0;
#endif
		atomic { k_out[k_written] = PUSH; k_written++; pushes-- }
	od
}
