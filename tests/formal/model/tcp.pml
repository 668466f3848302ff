// SPDX-License-Identifier: BSD-2-Clause
/*
 * Requests over TCP that the driver answers, bpf/flow.bpf.h and bpf/tcp.bpf.c, for Spin: a client,
 * a network that loses, repeats and reorders in both directions, the driver's programs at ingress
 * and egress, the kernel's TCP, and xkvd, which owns the connection.  tests/formal/test_spin.py
 * runs it; docs/model.md says what is left out and what comes of each switch.
 *
 * A request is one byte, and so is a reply: the number of the request.  The client's view of both
 * streams and the kernel's are as in bpf/tcp.h.  An atomic block is what a program does under the
 * lock of the flow, or the kernel under that of the socket.  A segment has MOST bytes at most.
 *
 * What is checked:
 *  - the n-th request is executed as the n-th, once, whoever does it;
 *  - a place of the stream to the client has one content, however often it is sent;
 *  - the n-th reply that the client reads is that to its n-th request;
 *  - the kernel gets no acknowledgement of what it has not sent, neither does the client;
 *  - when the network loses nothing any more, who repeats what is not acknowledged gets on;
 *  - if it never does, nobody has to repeat anything;
 *  - everybody comes to the end.
 *
 * So many times the network loses, repeats, and a timer ends early: LOSSES, COPIES, EARLY.  PUSHES
 * are messages that no request has asked for.  BUSY times the driver finds a key locked, by an
 * ATOMIC datagram or by a transaction.  HALF is the first half of a command, and the byte behind it
 * the second, which looks like a command of its own.  FRAGMENTS segments come in two fragments, of
 * which the driver sees only the first byte.  PATH: at some moment the way to the client takes
 * segments of one byte only, and a router tells about each that is longer.
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
#ifndef BUSY
#define BUSY 0
#endif
#ifndef FRAGMENTS
#define FRAGMENTS 0
#endif
#ifndef ARMED /* from the beginning */
#define ARMED 0
#endif
#ifndef MOST
#define MOST 1
#endif
#ifdef HALF
#define WHOLES (REQUESTS - 1)
#else
#define HALF   NOTHING
#define WHOLES REQUESTS
#endif

#define REPLIES (WHOLES + PUSHES)
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

#ifdef ADVANCE_FIRST /* a command that finds its key locked is not eaten */
#define EATEN s.size
#else
#define EATEN done
#endif

#ifdef DROP_OWED /* who acknowledges a reply may tell the kernel what it is owed */
#define IS_OWED false
#else
#define IS_OWED owed
#endif

#ifdef DROP_NEWS /* ... or what it has sent meanwhile */
#define HAS_SENT false
#else
#define HAS_SENT kernel_sent
#endif

#ifdef NOT_OWED /* the kernel gets what a request acknowledges that the driver has eaten */
#define OWES false
#else
#define OWES (to_kernel != kernel_acked)
#endif

#ifdef NO_IN_PARTS /* after fragments nobody knows where the next byte is */
#define IN_PARTS false
#else
#define IN_PARTS in_parts
#endif

#ifdef ONE_PART /* a kept reply that is too long by now is sent in parts */
#define PART reply_len
#else
#define PART (reply_len < mss -> reply_len : mss)
#endif

#ifdef EACH_ACKS /* only the last part acknowledges the request */
#define LAST_PART true
#else
#define LAST_PART (PART == reply_len)
#endif

#ifdef NO_TRIM /* parts that are acknowledged are not sent again */
#define TRIMMED false
#else
#define TRIMMED (unacked && s.ack > reply_seq && s.ack < reply_seq + reply_len)
#endif

#ifdef QUOTED_AS_SENT /* the kernel is told in its own numbers that a segment is too long */
#define QUOTED told_seq
#else
#define QUOTED to_kernel
#endif

#ifdef NOT_OBEYED /* the driver learns that, too */
#define OBEYED false
#else
#define OBEYED (told_seq < server_next && to_kernel >= kernel_acked)
#endif

#ifdef PUBLISH_HALF /* xkvd publishes no position within a command */
#define PUBLISHES_HALF (k_read == answered + 1)
#else
#define PUBLISHES_HALF false
#endif

#ifdef PUBLISH_WHEN_READ /* xkvd publishes what it has read before it has answered */
#define PUBLISHES true
#else
#define PUBLISHES (k_read == answered + 1)
#endif

/* ---- the network ---- */

typedef segment { bit used; short seq; byte size; byte val; short ack; bit parts };
typedef network { segment at[SLOTS] }
network up, down; /* from the client, and to it: of the stream to it `content` has the bytes */
byte losses = LOSSES, copies = COPIES, early = EARLY, fragments = FRAGMENTS;
bit narrow; /* the way to the client */
bit told;   /* a router has something to tell, about the segment that began at ... */
short told_seq;

/* ---- the client ---- */

byte c_una, c_next, c_rcv; /* acknowledged, sent, received */
bit c_held;		   /* the byte behind c_rcv has come first */
byte c_read;		   /* replies; after the first half of a command that counts as one */

/* ---- the flow ---- */

byte eaten, injected;
byte client_next, server_next;
byte request_seq, request_end, reply_seq, reply_val, reply_len; /* the last ones */
byte mss = MOST;
bit unacked, owed, in_parts;
bit kernel_sent; /* something, since the client's last segment went up */
short owed_seq, owed_ack, kernel_acked;
byte content[REPLIES + 1] = NOTHING; /* by the place in the stream to the client */

/* ---- xkvd ---- */

byte pos_read, pos_written;
bit armed = ARMED;
byte answered, pushes = PUSHES;
byte executed; /* requests, by xkvd and the driver */
byte busy = BUSY;

/* ---- the kernel ---- */

byte k_rcv, k_una, k_next, k_written, k_read;
byte k_in[REQUESTS] = NOTHING;
byte k_out[REPLIES + 1];
bit k_ack; /* it has something to acknowledge */
byte k_mss = MOST;
segment k_part; /* the first fragment of a segment, whose second one is under way */
chan ingress = [3] of { bit, short, byte, byte, short }; /* an answer?, seq, size, val, ack */
chan egress = [2] of { short, byte, short };		 /* seq, size, ack */

/* nobody gets on by these: they are how many timers have ended since somebody has */
byte tries;
bit turn; /* whose timer ends next, if it runs: 1 = the kernel's */
bit wrong_request, wrong_reply, two_contents, acks_unsent, hung, needless;
bit lost; /* where the network loses nothing: what found no place, or came too early */

#define ALL_DONE (c_read == REQUESTS && c_una == REQUESTS && !pushes && c_rcv == REPLIES)
#define INJECTED_AT (reply_seq - (injected - reply_len))

inline set(to, used_, seq_, size_, val_, ack_)
{
	to.used = used_;
	to.seq = seq_;
	to.size = size_;
	to.val = val_;
	to.ack = ack_;
	to.parts = 0
}

inline put(net, seq_, size_, val_, ack_)
{
	if
	:: !net.at[0].used -> set(net.at[0], 1, seq_, size_, val_, ack_)
	:: net.at[0].used && !net.at[1].used -> set(net.at[1], 1, seq_, size_, val_, ack_)
	:: else -> lost = !LOSSES
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
	s.parts = net.at[i].parts;
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

inline fill(seq_, val_)
{
	two_contents = content[seq_] != NOTHING && content[seq_] != val_;
	assert(!two_contents);
	content[seq_] = val_
}

/* What is sent at a place of the stream to the client. */
inline send_down(seq_, size_, val_, next_val, ack_)
{
	if
	:: size_ -> fill(seq_, val_)
	:: else
	fi;
	if
	:: size_ == 2 -> fill(seq_ + 1, next_val)
	:: else
	fi;
	put(down, seq_, size_, 0, ack_)
}

/* The kept reply, or its first part. */
inline send_reply()
{
	s.size = PART;
	s.ack = (LAST_PART -> request_end : request_seq);
	send_down(reply_seq, s.size, reply_val, reply_val + 1, s.ack)
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
		assert(!hung);
		needless = !LOSSES && !lost;
		assert(!needless)
	fi
}

/* ---- the client and the network ---- */

/* A segment of the client may come in fragments. */
inline put_request(seq_, size_)
{
	if
	:: put(up, seq_, size_, seq_, c_rcv)
	:: size_ == 2 && fragments && !up.at[0].used ->
		fragments--;
		set(up.at[0], 1, seq_, size_, seq_, c_rcv);
		up.at[0].parts = 1
	fi
}

/* What a narrow way does to segments that are too long. */
#define TOO_LONG (narrow && ((down.at[0].used && down.at[0].size == 2) || \
			     (down.at[1].used && down.at[1].size == 2)))

inline tell()
{
	i = (down.at[0].used && down.at[0].size == 2 -> 0 : 1);
	told = 1;
	told_seq = down.at[i].seq;
	set(down.at[i], 0, 0, 0, 0, 0);
	i = 0
}

active proctype client()
{
	segment s;
	byte i;

	do
	:: atomic { c_next < REQUESTS && c_next < c_una + WINDOW ->
		put_request(c_next, 1);
		c_next++ }
	:: atomic { MOST == 2 && c_next + 1 < REQUESTS && c_next + 1 < c_una + WINDOW ->
		put_request(c_next, 2);
		c_next = c_next + 2 }
	:: atomic { c_una < c_next && (early || (timeout && (!turn || k_una == k_next))) ->
		timer_ends(1);
		if
		:: put_request(c_una, 1)
		:: MOST == 2 && c_una + 1 < c_next -> put_request(c_una, 2)
		fi }
	:: atomic { SENT(down) && !TOO_LONG ->
		take(down);
		acks_unsent = s.ack > c_next;
		assert(!acks_unsent);
		if
		:: s.ack > c_una -> c_una = s.ack; tries = 0
		:: else
		fi;
		if
		:: s.size && s.seq == c_rcv + 1 ->
			c_held = 1;
			lost = lost || (!LOSSES && s.size == 2)
		:: s.size && s.seq <= c_rcv && s.seq + s.size > c_rcv ->
			c_held = c_held || s.seq + s.size > c_rcv + 1;
			i = 1 + c_held;
			c_held = 0;
			tries = 0;
			do
			:: i ->
				c_read = c_read + (c_read == HALF);
				wrong_reply = content[c_rcv] != PUSH && content[c_rcv] != c_read;
				assert(!wrong_reply);
				c_read = c_read + (content[c_rcv] != PUSH);
				c_rcv++;
				i--
			:: else -> break
			od
		:: else -> lost = lost || (!LOSSES && s.size && s.seq > c_rcv)
		fi;
		if
		:: s.size -> put(up, c_next, 0, 0, c_rcv)
		:: else
		fi;
		forget() }
	:: atomic { TOO_LONG -> tell() }
#ifdef PATH
	:: atomic { !narrow -> narrow = 1; tries = 0 }
#endif
	:: atomic { losses && SENT(up) -> lose(up) }
	:: atomic { losses && SENT(down) -> lose(down) }
	:: atomic { ALL_DONE -> break }
	od;
	/* the last acknowledgement may be lost */
end:	do
	:: atomic { SENT(down) && !TOO_LONG ->
		take(down);
		if
		:: s.size -> put(up, c_next, 0, 0, c_rcv)
		:: else
		fi;
		forget() }
	:: atomic { TOO_LONG -> tell() }
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

/* The driver sees only the first one of two fragments. */
#define SEEN (s.parts -> 1 : s.size)

inline pass_up()
{
	kernel_sent = s.parts || s.seq != client_next || s.ack != server_next;
	if
	:: client_next < s.seq + SEEN -> client_next = s.seq + SEEN
	:: else
	fi;
	if
	:: kernel_acked < to_kernel -> kernel_acked = to_kernel
	:: else
	fi;
	if
	:: s.parts ->
		in_parts = 1;
		set(k_part, 1, s.seq - eaten, s.size, s.val, to_kernel)
	:: else -> ingress!0, s.seq - eaten, s.size, s.val, to_kernel
	fi
}

/* The first commands of the segment are executed, and those are eaten. */
inline answer()
{
	wrong_request = s.val != executed || s.val == HALF + 1;
	assert(!wrong_request);
	executed = executed + done;
	owed = OWES && EATEN == s.size;
	kernel_sent = kernel_sent && (to_kernel == kernel_acked || EATEN < s.size);
	owed_seq = s.seq - eaten;
	owed_ack = to_kernel;
	kernel_acked = to_kernel;
	request_seq = s.seq;
	request_end = s.seq + EATEN;
	reply_seq = s.ack;
	reply_len = done;
	reply_val = s.val;
	eaten = eaten + EATEN;
	injected = injected + done;
	client_next = request_end;
	server_next = reply_seq + reply_len;
	unacked = 1;
	if
	:: EATEN < s.size ->
		s.seq = s.seq + done;
		s.val = s.val + done;
		s.size = s.size - done;
		translate_ack(s.ack);
		pass_up()
	:: else ->
		if
		:: owed -> ingress!1, reply_seq, reply_len, reply_val, request_end
		:: else -> send_reply()
		fi
	fi
}

/* A half of a command is none that the driver knows. */
#define KNOWN (s.val != HALF && (s.size == 1 || s.val + 1 != HALF))
#define FITS (s.size <= mss)

/* An acknowledgement of a reply, which tells the kernel nothing, is dropped. */
#define IS_NO_NEWS                                                                  \
	(acked && !s.size && !s.parts && s.seq == client_next && s.ack == server_next && \
	 !IS_OWED && !HAS_SENT)

active proctype from_client()
{
	segment s;
	byte i, done;
	bit acked;
	short to_kernel;

end:	do
	:: atomic { SENT(up) && nfull(ingress) ->
		take(up);
		if
		:: unacked && !s.parts && s.ack >= reply_seq + reply_len && s.ack <= server_next ->
			unacked = 0;
			acked = 1
		:: TRIMMED && !s.parts ->
			reply_val = reply_val + (s.ack - reply_seq);
			reply_len = reply_len - (s.ack - reply_seq);
			reply_seq = s.ack
		:: else
		fi;
		translate_ack(s.ack);
		if
		:: unacked && !s.parts && (REPEATED || LACKS) -> send_reply()
		:: IS_NO_NEWS
		:: !(unacked && !s.parts && (REPEATED || LACKS)) && !(IS_NO_NEWS) ->
			if
			:: s.size && !s.parts && !IN_PARTS && armed && KNOWN && FITS && !unacked &&
			   NEXT_BYTE && ALL_ACKED && POSITION_FITS ->
				done = s.size;
				if
				:: true
				:: busy -> busy--; done = done - 1
				fi;
				if
				:: done || EATEN -> answer()
				:: else -> pass_up()
				fi
			:: else -> pass_up()
			fi
		fi;
		done = 0;
		acked = 0;
		to_kernel = 0;
		forget() }
	:: atomic { told ->
		/* what is quoted of a reply that is under way is where the kernel sends next */
		to_kernel = told_seq - injected;
		if
		:: unacked -> translate_ack(told_seq)
		:: else
		fi;
		if
		:: OBEYED -> mss = 1
		:: else
		fi;
		if
		:: QUOTED == k_una -> k_mss = 1
		:: else
		fi;
		told = 0;
		told_seq = 0;
		to_kernel = 0 }
	od
}

active proctype to_client()
{
	segment s;
	short injected_at, k_seq;

end:	do
	:: atomic { nempty(egress) && nfull(ingress) ->
		egress?s.seq, s.size, s.ack;
		k_seq = s.seq;
		injected_at = INJECTED_AT;
		if
		:: s.size && BEFORE_REPLY -> ingress!0, s.ack, 0, 0, injected_at
		:: else ->
			s.seq = s.seq + (BEFORE_REPLY -> injected - reply_len : injected);
			s.ack = s.ack + eaten;
			if
			:: CAPPED && s.ack > request_seq -> s.ack = request_seq
			:: else
			fi;
			kernel_sent = 1;
			if
			:: server_next < s.seq + s.size -> server_next = s.seq + s.size
			:: else
			fi;
			send_down(s.seq, s.size, k_out[k_seq], k_out[k_seq + 1], s.ack)
		fi;
		injected_at = 0;
		k_seq = 0;
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
			send_down(s.seq, s.size, s.val, s.val + 1, s.ack);
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
				if
				:: s.size == 2 && s.seq + 1 >= k_rcv -> k_in[s.seq + 1] = s.val + 1
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
	:: atomic { k_part.used && nfull(ingress) -> /* its second fragment has come */
		ingress!0, k_part.seq, k_part.size, k_part.val, k_part.ack;
		set(k_part, 0, 0, 0, 0, 0) }
	:: atomic { k_part.used && losses -> /* it is lost */
		losses--;
		set(k_part, 0, 0, 0, 0, 0) }
	od
}

active proctype kernel_sends()
{
	byte i;

end:	do
	:: atomic { k_next < k_written && nfull(egress) ->
		i = (k_mss == 2 && k_next + 1 < k_written -> 2 : 1);
		egress!k_next, i, k_rcv;
		k_next = k_next + i;
		i = 0;
		k_ack = 0 }
	:: atomic { k_ack && nfull(egress) ->
		egress!k_next, 0, k_rcv;
		k_ack = 0 }
	:: atomic { k_una < k_next && nfull(egress) &&
		    (early || (timeout && (turn || c_una == c_next))) ->
		timer_ends(0);
		i = (k_mss == 2 && k_una + 1 < k_next -> 2 : 1);
		egress!k_una, i, k_rcv;
		i = 0 }
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
	:: answered < k_read && k_in[answered] == HALF ->
		if
		:: atomic { PUBLISHES_HALF -> pos_read = k_read; pos_written = k_written };
			armed = 1
		:: !(PUBLISHES_HALF) -> skip
		fi;
		answered++
	:: answered < k_read && k_in[answered] != HALF ->
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
