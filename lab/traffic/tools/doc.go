// Package tools runs other people's measuring programs between two network namespaces and reads what they print: ping, iperf3, iperf 2,
// sockperf, nuttcp, netcat. Every result keeps the raw output, the arguments and the program's version, so that it can be read again.
//
// The parsers are pure and tested against real outputs; what a program did not measure is an error, never a zero.
package tools
