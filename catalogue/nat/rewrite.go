package main

// Offsets in a packet of ICMP.
const (
	icmpHeader = 8
	echoID     = 4 // of an echo request and its answer
)

// Types of ICMP.
const (
	echoReply   = 0
	echoRequest = 8
)

func echo(kind uint8) bool { return kind == echoRequest || kind == echoReply }
