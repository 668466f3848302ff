// SPDX-License-Identifier: BSD-2-Clause
/*
 * The end of a connection on which the driver has answered, and another one between the same ports,
 * bpf/tcp.bpf.c and loader/net/flows.c, for Spin: a client, a network that loses, repeats and
 * reorders in both directions, the driver's flow, the kernel's TCP, and xkvd.
 * tests/formal/test_spin.py runs it; docs/model.md says what is left out and what comes of each
 * switch.
 *
 * Connection n has the numbers from 10 n on.  One request has been answered in the driver, so the
 * client's numbers are one more than the kernel's, in both directions; on the second connection
 * that may happen later, or not at all.  Either side closes or resets at any moment.  An atomic
 * block is what a side does for one segment, with what the driver does to it on its way.
 *
 * What is checked:
 *  - neither side gets an acknowledgement of what it has not sent;
 *  - when the network loses nothing any more, who repeats what is not acknowledged gets on;
 *  - everybody comes to the end: no socket and no flow is left.
 *
 * So many times the network loses, repeats, and a timer ends early: LOSSES, COPIES, EARLY.
 */

#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef COPIES
#define COPIES 0
#endif
#ifndef EARLY
#define EARLY 0
#endif

#define SLOTS	 2 /* of the network, in each direction; what finds none is lost */
#define PATIENCE 5 /* timers in a row that may bring nothing */

/* ---- the rules; -D and a name takes one out ---- */

#ifdef END_EARLY /* xkvd ends a flow when the kernel has no socket any more */
#define OVER true
#elif defined(IGNORE_TIME_WAIT) /* TIME_WAIT is one, too */
#define OVER (kernel_in == NONE || kernel_in == TIME_WAIT)
#else
#define OVER (kernel_in == NONE)
#endif

#ifdef END_BY_PORTS /* another connection may have the ports, and a flow, by then */
#define IS_ITS(n) true
#else
#define IS_ITS(n) (flow == (n))
#endif

#ifdef KEEP_AT_SYN /* the kernel's SYN-ACK ends the flow of the connection before */
#define ENDS_FLOW false
#else
#define ENDS_FLOW s_syn
#endif

/* ---- the network ---- */

typedef segment { bit used, syn, fin, rst; byte seq; byte ack } /* 0: acknowledges nothing */
typedef network { segment at[SLOTS] }
network up, down; /* from the client, and to it */
byte losses = LOSSES, copies = COPIES, early = EARLY;

#define EMPTY(net) (!net.at[0].used && !net.at[1].used)

/* ---- both sides ---- */

/* For minutes nothing has come, and of a peer that is still there something would have. */
#define QUIET(state, peer) \
	(EMPTY(up) && EMPTY(down) && \
	 (state == TIME_WAIT || (state == FIN_WAIT_2 && (peer == NONE || connection == 2))))

/* As TCP calls them; NONE: no socket.  The kernel listens. */
mtype = { NONE, SYN_SENT, SYN_RCVD, ESTABLISHED, FIN_WAIT_1, FIN_WAIT_2, CLOSING, TIME_WAIT,
	  CLOSE_WAIT, LAST_ACK };

mtype client_in = ESTABLISHED, kernel_in = ESTABLISHED;
byte connection = 1;	     /* the client's */
byte c_next = 12, c_rcv = 12; /* the next number that it sends, and that it expects */
byte k_next = 11, k_rcv = 11;

/* ---- the flow, and xkvd ---- */

byte flow = 1;	  /* of this connection; 0 = there is none */
byte accepted = 1; /* by xkvd, the last one */
bit open = 1;	  /* which it has not closed */
byte ended;	  /* those that it looks at: a bit for each */

byte tries; /* timers that have ended since somebody has got on */
bit turn;   /* whose timer ends next, if it runs: 1 = the kernel's */
bit acks_unsent, hung;

#define WAITS(state) (state == SYN_SENT || state == SYN_RCVD || state == FIN_WAIT_1 || \
		      state == CLOSING || state == LAST_ACK)

inline set(to, used_, syn_, fin_, rst_, seq_, ack_)
{
	to.used = used_;
	to.syn = syn_;
	to.fin = fin_;
	to.rst = rst_;
	to.seq = seq_;
	to.ack = ack_
}

inline put(net, syn_, fin_, rst_, seq_, ack_)
{
	if
	:: !net.at[0].used -> set(net.at[0], 1, syn_, fin_, rst_, seq_, ack_)
	:: net.at[0].used && !net.at[1].used -> set(net.at[1], 1, syn_, fin_, rst_, seq_, ack_)
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
	s_syn = net.at[i].syn;
	s_fin = net.at[i].fin;
	s_rst = net.at[i].rst;
	s_seq = net.at[i].seq;
	s_ack = net.at[i].ack;
	if
	:: set(net.at[i], 0, 0, 0, 0, 0, 0)
	:: copies -> copies--
	fi;
	i = 0
}

inline forget()
{
	s_syn = 0; s_fin = 0; s_rst = 0; s_seq = 0; s_ack = 0
}

inline lose(net)
{
	if
	:: net.at[0].used -> set(net.at[0], 0, 0, 0, 0, 0, 0)
	:: net.at[1].used -> set(net.at[1], 0, 0, 0, 0, 0, 0)
	fi;
	losses--
}

inline become(state, what)
{
	state = what;
	tries = 0
}

/* Timers of both sides end in turn, when nothing else can happen; or early. */
inline timer_ends(next_turn)
{
	if
	:: early -> early--
	:: else ->
		turn = next_turn;
		tries = (losses -> 0 : tries + 1);
		hung = tries > PATIENCE;
		assert(!hung)
	fi
}

/* Everything that was sent is acknowledged: also the FIN. */
inline is_acked(state)
{
	if
	:: state == SYN_RCVD -> become(state, ESTABLISHED)
	:: state == FIN_WAIT_1 -> become(state, FIN_WAIT_2)
	:: state == CLOSING -> become(state, TIME_WAIT)
	:: state == LAST_ACK -> become(state, NONE)
	:: else
	fi
}

inline gets_fin(state)
{
	if
	:: state == ESTABLISHED -> become(state, CLOSE_WAIT)
	:: state == FIN_WAIT_1 -> become(state, CLOSING)
	:: state == FIN_WAIT_2 -> become(state, TIME_WAIT)
	fi
}

/* A segment of an open connection; `send(flags)` sends one from here. */
#define RECEIVE(state, next, rcv, send)                                      \
	if                                                                   \
	:: s_rst && s_seq == rcv -> become(state, NONE)                      \
	:: s_rst && s_seq != rcv                                             \
	:: !s_rst && s_seq < rcv ->                                          \
		if                                                           \
		:: s_fin || s_syn -> send(0, 0, 0, next, rcv)                \
		:: else                                                      \
		fi                                                           \
	:: !s_rst && s_seq >= rcv && (s_syn || s_seq > rcv + 1) ->           \
		send(0, 0, 0, next, rcv)                                     \
	:: !s_rst && !s_syn && s_seq >= rcv && s_seq <= rcv + 1 ->           \
		acks_unsent = s_ack > next;                                  \
		assert(!acks_unsent);                                        \
		if                                                           \
		:: s_ack == next -> is_acked(state)                          \
		:: else                                                      \
		fi;                                                          \
		if                                                           \
		:: s_fin && s_seq == rcv && (state == ESTABLISHED ||         \
		   state == FIN_WAIT_1 || state == FIN_WAIT_2) ->            \
			gets_fin(state);                                     \
			rcv++;                                               \
			send(0, 0, 0, next, rcv)                             \
		:: else                                                      \
		fi                                                           \
	fi

/* ---- the client and the network ---- */

#define FROM_CLIENT(syn_, fin_, rst_, seq_, ack_) put(up, syn_, fin_, rst_, seq_, ack_)

inline client_connects()
{
	connection = 2;
	c_next = 21;
	c_rcv = 0;
	become(client_in, SYN_SENT);
	put(up, 1, 0, 0, 20, 0)
}

inline client_receives()
{
	if
	:: client_in == NONE && !s_rst -> put(up, 0, 0, 1, s_ack, 0)
	:: client_in == NONE && s_rst
	:: client_in == SYN_SENT && s_syn && s_ack == c_next ->
		c_rcv = s_seq + 1;
		become(client_in, ESTABLISHED);
		put(up, 0, 0, 0, c_next, c_rcv)
	:: client_in == SYN_SENT && !(s_syn && s_ack == c_next) && !s_rst ->
		put(up, 0, 0, 1, s_ack, 0) /* of the connection before */
	:: client_in == SYN_SENT && s_rst
	:: client_in != NONE && client_in != SYN_SENT ->
		RECEIVE(client_in, c_next, c_rcv, FROM_CLIENT)
	fi
}

inline client_closes()
{
	become(client_in, (client_in == ESTABLISHED -> FIN_WAIT_1 : LAST_ACK));
	put(up, 0, 1, 0, c_next, c_rcv);
	c_next++
}

inline client_repeats()
{
	if
	:: client_in == SYN_SENT -> put(up, 1, 0, 0, c_next - 1, 0)
	:: else -> put(up, 0, 1, 0, c_next - 1, c_rcv)
	fi
}

#define MAY_CLOSE(state) (state == ESTABLISHED || state == CLOSE_WAIT)

active proctype client()
{
	byte i, s_seq, s_ack;
	bit s_syn, s_fin, s_rst;

end:	do
	:: atomic { !EMPTY(down) -> take(down); client_receives(); forget() }
	:: atomic { MAY_CLOSE(client_in) -> client_closes() }
	/* resets */
	:: atomic { client_in != NONE && client_in != SYN_SENT && client_in != TIME_WAIT ->
		put(up, 0, 0, 1, c_next, 0);
		become(client_in, NONE) }
	:: atomic { connection == 1 && (client_in == NONE || client_in == TIME_WAIT) ->
		client_connects() }
	:: atomic { QUIET(client_in, kernel_in) -> become(client_in, NONE) }
	:: atomic { WAITS(client_in) && (early || (timeout && (!turn || !WAITS(kernel_in)))) ->
		timer_ends(1);
		client_repeats() }
	:: atomic { losses && !EMPTY(up) -> lose(up) }
	:: atomic { losses && !EMPTY(down) -> lose(down) }
	od
}

/* ---- the driver ---- */

/* Another request is answered there, on a connection that has no flow yet. */
active proctype driver()
{
end:	do
	:: atomic { !flow && !(ended & 2) && accepted == 2 && open && EMPTY(up) && EMPTY(down) &&
		    client_in == ESTABLISHED && kernel_in == ESTABLISHED ->
		flow = 2;
		c_next++;
		c_rcv++ }
	od
}

/* What the kernel sends passes the driver. */
#define FROM_KERNEL(syn_, fin_, rst_, seq_, ack_)       \
	s_syn = syn_;                                   \
	s_seq = seq_;                                   \
	s_ack = ack_;                                   \
	flow = (ENDS_FLOW -> 0 : flow);                 \
	if                                              \
	:: flow && !s_syn ->                            \
		s_seq++;                                \
		s_ack = (s_ack -> s_ack + 1 : 0)        \
	:: else                                         \
	fi;                                             \
	put(down, syn_, fin_, rst_, s_seq, s_ack)

inline translate()
{
	if
	:: flow && !s_syn ->
		s_seq--;
		s_ack = (s_ack -> s_ack - 1 : 0)
	:: else
	fi
}

/* ---- the kernel ---- */

inline kernel_accepts()
{
	k_rcv = s_seq + 1;
	k_next = s_seq + 1; /* both begin at the same number */
	become(kernel_in, SYN_RCVD);
	FROM_KERNEL(1, 0, 0, k_next - 1, k_rcv)
}

#define IS_NEW	     (s_syn && s_seq > k_rcv)
#define IS_SYN_AGAIN (s_syn && s_seq == k_rcv - 1)
#define IS_NO_ACK    (!s_syn && !s_rst && s_ack != k_next)

inline kernel_receives()
{
	if
	:: kernel_in == NONE && s_syn -> kernel_accepts()
	:: kernel_in == NONE && !s_syn && !s_rst -> FROM_KERNEL(0, 0, 1, s_ack, 0)
	:: kernel_in == NONE && s_rst
	:: kernel_in == TIME_WAIT && IS_NEW -> kernel_accepts()
	:: kernel_in == SYN_RCVD && IS_SYN_AGAIN -> FROM_KERNEL(1, 0, 0, k_next - 1, k_rcv)
	:: kernel_in == SYN_RCVD && IS_NO_ACK -> FROM_KERNEL(0, 0, 1, s_ack, 0)
	:: kernel_in != NONE && !(kernel_in == TIME_WAIT && IS_NEW) &&
	   !(kernel_in == SYN_RCVD && (IS_SYN_AGAIN || IS_NO_ACK)) ->
		RECEIVE(kernel_in, k_next, k_rcv, FROM_KERNEL)
	fi
}

active proctype kernel()
{
	byte i, s_seq, s_ack;
	bit s_syn, s_fin, s_rst;

end:	do
	:: atomic { !EMPTY(up) -> take(up); translate(); kernel_receives(); forget() }
	:: atomic { QUIET(kernel_in, client_in) -> become(kernel_in, NONE) }
	:: atomic { WAITS(kernel_in) && (early || (timeout && (turn || !WAITS(client_in)))) ->
		timer_ends(0);
		if
		:: kernel_in == SYN_RCVD -> FROM_KERNEL(1, 0, 0, k_next - 1, k_rcv)
		:: else -> FROM_KERNEL(0, 1, 0, k_next - 1, k_rcv)
		fi;
		forget() }
	od
}

/* ---- xkvd ---- */

inline xkvd_closes()
{
	open = 0;
	ended = ended | accepted; /* 1 and 2 are bits, too */
	tries = 0
}

/* The kernel's socket, if there is one, is that of the connection that xkvd has accepted. */
#define IS_ACCEPTED ((accepted == 2) == (k_rcv > 20))

active proctype xkvd()
{
	byte s_seq, s_ack;
	bit s_syn;

	do
	:: atomic { !open && k_rcv > 20 && MAY_CLOSE(kernel_in) ->
		accepted = 2;
		open = 1 }
	:: atomic { open && MAY_CLOSE(kernel_in) && IS_ACCEPTED ->
		xkvd_closes();
		become(kernel_in, (kernel_in == ESTABLISHED -> FIN_WAIT_1 : LAST_ACK));
		FROM_KERNEL(0, 1, 0, k_next, k_rcv);
		s_seq = 0; s_ack = 0;
		k_next++ }
	:: atomic { open && MAY_CLOSE(kernel_in) && IS_ACCEPTED -> /* with unread bytes */
		xkvd_closes();
		FROM_KERNEL(0, 0, 1, k_next, k_rcv);
		s_seq = 0; s_ack = 0;
		become(kernel_in, NONE) }
	/* it was reset, or is another one by now */
	:: atomic { open && (kernel_in == NONE || !IS_ACCEPTED) -> xkvd_closes() }
	:: atomic { ended & 1 && (flow != 1 || OVER) ->
		ended = ended & 2;
		flow = (IS_ITS(1) -> 0 : flow) }
	:: atomic { ended & 2 && (flow != 2 || OVER) ->
		ended = ended & 1;
		flow = (IS_ITS(2) -> 0 : flow) }
	/* nothing is left at the end */
	:: atomic { timeout && connection == 2 && client_in == NONE && kernel_in == NONE &&
		    !ended && !open -> assert(!flow); break }
	od
}
