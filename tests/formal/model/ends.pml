// SPDX-License-Identifier: BSD-2-Clause
/*
 * Connections that end while requests and replies are under way, bpf/flow.bpf.h and bpf/tcp.bpf.c,
 * for Spin: as in tcp.pml, but either side shuts its half, closes or resets at any moment.
 * tests/formal/test_spin.py runs it; docs/model.md says what is left out and what comes of each
 * switch.  When flows end is that of close.pml.
 *
 * A request is one byte, and so is a reply: the number of the request.  A FIN takes a place in the
 * stream, too.  The client shuts its half after any number of requests, and still receives, or
 * resets.  xkvd reads to the end, answers and closes; or it closes before, where the kernel resets
 * if something is not read, or comes later.
 *
 * What is checked:
 *  - the n-th request is executed as the n-th, once, and all that were sent before the FIN are;
 *  - a place of the stream to the client has one content, however often it is sent;
 *  - the n-th reply that the client reads is that to its n-th request, and it reads all of them
 *    before the end of the stream;
 *  - neither side gets an acknowledgement of what it has not sent;
 *  - nobody is reset who has not given a reason;
 *  - when the network loses nothing any more, who repeats what is not acknowledged gets on, and
 *    everybody comes to the end.
 *
 * So many times the network loses, repeats, and a timer ends early: LOSSES, COPIES, EARLY.
 */

#ifndef REQUESTS
#define REQUESTS 2
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
#ifndef ABORTS /* may the client reset? */
#define ABORTS 0
#endif
#ifndef LEAVES /* may xkvd close early? */
#define LEAVES 0
#endif

#define END	 6 /* a FIN, where it stands for a byte */
#define NOTHING	 7
#define SLOTS	 2 /* of the network, in each direction; what finds none is lost */
#define PATIENCE 5 /* timers in a row that may bring nothing */

/* ---- the rules; -D and a name takes one out ---- */

#ifdef SENT_FIN_IS_NO_BYTE /* a FIN to the client takes a place, too (with ARMED_AT_CLOSE) */
#define SENT_PLACES (s.size && k_out[k_seq] != END)
#else
#define SENT_PLACES s.size
#endif

#ifdef NO_REPEAT /* a repeated request gets the kept reply, also if it is merged with the FIN */
#define REPEATED false
#else
#define REPEATED (s.size && s.seq < request_end)
#endif

#ifdef NO_DUPLICATE_ACK /* so does an acknowledgement that lacks it, of the kernel's FIN, say */
#define LACKS false
#else
#define LACKS (!s.size && !s.fin && !s.rst && s.ack == reply_seq)
#endif

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

#ifdef SHIFT_NO_RESET /* a reset has the numbers of its side, too */
#define SHIFTED (!s.rst)
#else
#define SHIFTED true
#endif

#ifdef CLOSE_AT_FIN /* xkvd answers all before it closes */
#define CLOSES true
#else
#define CLOSES (answered == k_read)
#endif

#ifdef ARMED_AT_CLOSE /* xkvd takes a connection back before it closes it */
#define DISARM
#else
#define DISARM armed = 0
#endif

#ifdef NO_ALL_ACKED /* the client has acknowledged all that was sent */
#define ALL_ACKED true
#else
#define ALL_ACKED (s.ack == server_next)
#endif

/* ---- the network ---- */

typedef segment { bit used, fin, rst; short seq; byte size; byte val; short ack }
typedef network { segment at[SLOTS] }
network up, down; /* from the client, and to it: of the stream to it `content` has the bytes */
byte losses = LOSSES, copies = COPIES, early = EARLY;

/* ---- the client ---- */

byte c_una, c_next, c_rcv; /* acknowledged, sent, received: places */
byte c_fin = NOTHING;	   /* the place of its FIN */
bit c_held, c_end, c_gone; /* the byte behind c_rcv has come; it has read the end; no socket */
byte c_read;		   /* replies */

/* ---- the flow ---- */

byte eaten, injected;
byte client_next, server_next;
byte request_seq, request_end, reply_seq, reply_val, reply_len; /* the last ones */
bit unacked, owed;
short owed_seq, owed_ack, kernel_acked;
byte content[REQUESTS + 2] = NOTHING; /* by the place in the stream to the client */

/* ---- xkvd ---- */

byte pos_read, pos_written;
bit armed = 1, closed, left; /* left: before it has read the end */
byte answered;
byte executed; /* requests, by xkvd and the driver */

/* ---- the kernel ---- */

byte k_rcv, k_una, k_next, k_written, k_read;
byte k_in[REQUESTS + 2] = NOTHING;
byte k_out[REQUESTS + 2] = NOTHING;
bit k_ack, k_gone, k_reset; /* it has something to acknowledge; no socket; a reset to send */
short k_reset_seq;

/* an answer?, rst, seq, size, val, ack */
chan ingress = [2] of { bit, bit, short, byte, byte, byte, short };
chan egress = [2] of { bit, short, byte, short }; /* rst, seq, size, ack */

byte tries; /* timers that have ended since somebody has got on */
bit turn;   /* whose timer ends next, if it runs: 1 = the kernel's */
bit wrong_request, wrong_reply, two_contents, acks_unsent, hung, cut_short, reset_in_vain;

#define INJECTED_AT (reply_seq - (injected - reply_len))
#define C_WAITS	    (!c_gone && c_una < c_next)
#define K_WAITS	    (!k_gone && k_una < k_next)
#define IS_GIVEN_UP (c_gone || left)

inline set(to, used_, rst_, seq_, size_, fin_, val_, ack_)
{
	to.used = used_;
	to.rst = rst_;
	to.seq = seq_;
	to.size = size_;
	to.fin = fin_;
	to.val = val_;
	to.ack = ack_
}

inline put(net, rst_, seq_, size_, fin_, val_, ack_)
{
	if
	:: !net.at[0].used -> set(net.at[0], 1, rst_, seq_, size_, fin_, val_, ack_)
	:: net.at[0].used && !net.at[1].used ->
		set(net.at[1], 1, rst_, seq_, size_, fin_, val_, ack_)
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
	set(s, 0, net.at[i].rst, net.at[i].seq, net.at[i].size, net.at[i].fin, net.at[i].val,
	    net.at[i].ack);
	if
	:: set(net.at[i], 0, 0, 0, 0, 0, 0, 0)
	:: copies -> copies--
	fi;
	i = 0
}

#define SENT(net) (net.at[0].used || net.at[1].used)

inline lose(net)
{
	if
	:: net.at[0].used -> set(net.at[0], 0, 0, 0, 0, 0, 0, 0)
	:: net.at[1].used -> set(net.at[1], 0, 0, 0, 0, 0, 0, 0)
	fi;
	losses--
}

inline forget()
{
	set(s, 0, 0, 0, 0, 0, 0, 0)
}

/* What is sent at a place of the stream to the client. */
inline send_down(rst_, seq_, size_, val_, ack_)
{
	if
	:: size_ ->
		two_contents = content[seq_] != NOTHING && content[seq_] != val_;
		assert(!two_contents);
		content[seq_] = val_
	:: else
	fi;
	put(down, rst_, seq_, size_, 0, 0, ack_)
}

inline send_reply()
{
	send_down(0, reply_seq, reply_len, reply_val, request_end)
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

inline client_reads()
{
	if
	:: content[c_rcv] == END ->
		c_end = 1;
		cut_short = !left && c_read != c_fin;
		assert(!cut_short)
	:: else ->
		wrong_reply = content[c_rcv] != c_read;
		assert(!wrong_reply);
		c_read++
	fi;
	c_rcv++
}

inline client_receives()
{
	if
	:: c_gone && !s.rst -> put(up, 1, s.ack, 0, 0, 0, 0)
	:: c_gone && s.rst
	:: !c_gone && s.rst && s.seq == c_rcv ->
		reset_in_vain = !IS_GIVEN_UP && !(c_end && c_una == c_next);
		assert(!reset_in_vain);
		c_gone = 1
	:: !c_gone && s.rst && s.seq > c_rcv -> put(up, 0, c_next, 0, 0, 0, c_rcv)
	:: !c_gone && s.rst && s.seq < c_rcv
	:: !c_gone && !s.rst ->
		acks_unsent = s.ack > c_next;
		assert(!acks_unsent);
		if
		:: s.ack > c_una -> c_una = s.ack; tries = 0
		:: else
		fi;
		if
		:: s.size && s.seq == c_rcv + 1 -> c_held = 1
		:: s.size && s.seq == c_rcv ->
			tries = 0;
			client_reads();
			if
			:: c_held -> c_held = 0; client_reads()
			:: else
			fi
		:: else
		fi;
		if
		:: s.size -> put(up, 0, c_next, 0, 0, 0, c_rcv)
		:: else
		fi
	fi
}

active proctype client()
{
	segment s;
	byte i;

end:	do
	:: atomic { !c_gone && c_fin == NOTHING && c_next < REQUESTS ->
		put(up, 0, c_next, 1, 0, c_next, c_rcv);
		c_next++ }
	:: atomic { !c_gone && c_fin == NOTHING -> /* shuts its half */
		c_fin = c_next;
		put(up, 0, c_next, 0, 1, 0, c_rcv);
		c_next++ }
	/* the last request has it */
	:: atomic { !c_gone && c_fin == NOTHING && c_next < REQUESTS ->
		c_fin = c_next + 1;
		put(up, 0, c_next, 1, 1, c_next, c_rcv);
		c_next = c_next + 2 }
	:: atomic { ABORTS && !c_gone ->
		c_gone = 1;
		put(up, 1, c_next, 0, 0, 0, c_rcv) }
	:: atomic { C_WAITS && (early || (timeout && (!turn || !K_WAITS))) ->
		timer_ends(1);
		if
		:: c_una == c_fin -> put(up, 0, c_una, 0, 1, 0, c_rcv)
		:: c_una != c_fin -> put(up, 0, c_una, 1, 0, c_una, c_rcv)
		:: c_una + 1 == c_fin -> put(up, 0, c_una, 1, 1, c_una, c_rcv)
		fi }
	:: atomic { SENT(down) -> take(down); client_receives(); forget() }
	:: atomic { losses && SENT(up) -> lose(up) }
	:: atomic { losses && SENT(down) -> lose(down) }
	/* who has shut its half comes to the end */
	:: atomic { timeout && !C_WAITS && !K_WAITS && !c_gone ->
		hung = !c_end && !k_gone && !closed;
		assert(!hung);
		break }
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

inline pass_up()
{
	if
	:: client_next < s.seq + s.size + s.fin -> client_next = s.seq + s.size + s.fin
	:: else
	fi;
	if
	:: !s.rst && kernel_acked < to_kernel -> kernel_acked = to_kernel
	:: else
	fi;
	ingress!0, s.rst, s.seq - (SHIFTED -> eaten : 0), s.size, s.fin, s.val, to_kernel
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
	request_seq = s.seq;
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
	:: owed -> ingress!1, 0, reply_seq, 1, 0, reply_val, request_end
	:: else -> send_reply()
	fi
}

#define IS_NO_NEWS                                                                              \
	(acked && !s.size && !s.rst && !s.fin && s.seq == client_next && s.ack == server_next && \
	 !owed && to_kernel == kernel_acked)

active proctype from_client()
{
	segment s;
	byte i;
	bit acked;
	short to_kernel;

end:	do
	:: atomic { SENT(up) && nfull(ingress) ->
		take(up);
		if
		:: unacked && !s.rst && s.ack >= reply_seq + reply_len && s.ack <= server_next ->
			unacked = 0;
			acked = 1
		:: else
		fi;
		translate_ack(s.ack);
		if
		:: unacked && (REPEATED || LACKS) -> send_reply()
		:: IS_NO_NEWS
		:: !(unacked && (REPEATED || LACKS)) && !(IS_NO_NEWS) ->
			if
			:: s.size && !s.fin && armed && !unacked && NEXT_BYTE &&
			   ALL_ACKED && POSITION_FITS -> answer()
			:: pass_up() /* for any reason */
			fi
		fi;
		acked = 0;
		to_kernel = 0;
		forget() }
	od
}

active proctype to_client()
{
	segment s;
	short injected_at, k_seq;

end:	do
	:: atomic { nempty(egress) && nfull(ingress) ->
		egress?s.rst, s.seq, s.size, s.ack;
		k_seq = s.seq;
		injected_at = INJECTED_AT;
		if
		:: s.size && injected && s.seq < injected_at ->
			ingress!0, 0, s.ack, 0, 0, 0, injected_at
		:: else ->
			if
			:: SHIFTED && injected && s.seq < injected_at ->
				s.seq = s.seq + injected - reply_len
			:: SHIFTED && !(injected && s.seq < injected_at) -> s.seq = s.seq + injected
			:: else
			fi;
			s.ack = s.ack + eaten;
			if
			:: unacked && !s.size && s.ack > request_seq -> s.ack = request_seq
			:: else
			fi;
			if
			:: server_next < s.seq + SENT_PLACES -> server_next = s.seq + SENT_PLACES
			:: else
			fi;
			send_down(s.rst, s.seq, s.size, k_out[k_seq], s.ack)
		fi;
		injected_at = 0;
		k_seq = 0;
		forget() }
	od
}

/* ---- the kernel ---- */

inline kernel_resets(seq_)
{
	k_gone = 1;
	DISARM;
	k_reset = 1;
	k_reset_seq = seq_
}

inline kernel_takes()
{
	acks_unsent = s.ack > k_next;
	assert(!acks_unsent);
	if
	:: s.ack > k_una -> k_una = s.ack; tries = 0
	:: else
	fi;
	if
	:: closed && s.size && s.seq >= k_rcv -> kernel_resets(s.ack)
	:: else ->
		if
		:: s.size && s.seq >= k_rcv -> k_in[s.seq] = s.val
		:: else
		fi;
		if
		:: s.fin && s.seq + s.size >= k_rcv -> k_in[s.seq + s.size] = END
		:: else
		fi;
		k_ack = k_ack || s.size || s.fin;
		do
		:: k_in[k_rcv] != NOTHING -> k_rcv++; tries = 0
		:: else -> break
		od
	fi
}

/* An answer that comes by is sent, and becomes the acknowledgement that is owed. */
active proctype kernel_receives()
{
	segment s;
	bit is_answer, none;

end:	do
	:: atomic { nempty(ingress) ->
		ingress?is_answer, s.rst, s.seq, s.size, s.fin, s.val, s.ack;
		if
		:: is_answer && owed && s.seq == reply_seq ->
			owed = 0;
			send_down(0, s.seq, s.size, s.val, s.ack);
			s.seq = owed_seq; s.size = 0; s.ack = owed_ack
		:: is_answer && !(owed && s.seq == reply_seq) -> none = 1
		:: else
		fi;
		if
		:: none
		:: !none && k_gone && !s.rst && !k_reset -> k_reset = 1; k_reset_seq = s.ack
		:: !none && k_gone && (s.rst || k_reset)
		:: !none && !k_gone && s.rst && s.seq == k_rcv ->
			reset_in_vain = !c_gone;
			assert(!reset_in_vain);
			k_gone = 1;
			DISARM
		:: !none && !k_gone && s.rst && s.seq > k_rcv -> k_ack = 1
		:: !none && !k_gone && s.rst && s.seq < k_rcv
		:: !none && !k_gone && !s.rst -> kernel_takes()
		fi;
		none = 0; is_answer = 0;
		forget() }
	od
}

active proctype kernel_sends()
{
end:	do
	:: atomic { !k_gone && k_next < k_written && nfull(egress) ->
		egress!0, k_next, 1, k_rcv;
		k_next++;
		k_ack = 0 }
	:: atomic { !k_gone && k_ack && nfull(egress) ->
		egress!0, k_next, 0, k_rcv;
		k_ack = 0 }
	:: atomic { k_reset && nfull(egress) ->
		egress!1, k_reset_seq, 0, 0;
		k_reset = 0;
		k_reset_seq = 0 }
	:: atomic { K_WAITS && nfull(egress) &&
		    (early || (timeout && (turn || !C_WAITS))) ->
		timer_ends(0);
		egress!0, k_una, 1, k_rcv }
	od
}

/* ---- xkvd ---- */

active proctype owner()
{
end:	do
	:: atomic { !closed && !k_gone && k_read < k_rcv && k_in[k_read] != END ->
		wrong_request = k_in[k_read] != executed;
		assert(!wrong_request);
		k_read++;
		executed++ }
	:: !closed && !k_gone && answered < k_read ->
		if
		:: atomic { k_read == answered + 1 ->
			pos_read = k_read;
			pos_written = k_written + 1 };
			armed = !k_gone
		:: k_read > answered + 1 -> skip
		fi;
		atomic {
			if
			:: !k_gone -> k_out[k_written] = k_in[answered]; k_written++; answered++
			:: else
			fi }
	/* the end of the stream */
	:: atomic { !closed && !k_gone && CLOSES && k_read < k_rcv && k_in[k_read] == END ->
		cut_short = executed != c_fin;
		assert(!cut_short);
		DISARM;
		k_read++;
		closed = 1 };
		atomic {
			if
			:: !k_gone -> k_out[k_written] = END; k_written++
			:: else
			fi }
	/* CLIENT KILL, a time-out, or QUIT */
	:: atomic { LEAVES && !closed && !k_gone && !(k_read < k_rcv && k_in[k_read] == END) ->
		left = 1;
		DISARM;
		closed = 1;
		if
		:: k_read < k_rcv || answered < k_read -> kernel_resets(k_next)
		:: else -> k_out[k_written] = END; k_written++
		fi }
	od
}
