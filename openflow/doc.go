// Package openflow speaks OpenFlow 1.3 (wire version 0x04): it encodes and decodes messages, and owns a connection's handshake, echo,
// transaction ids and matching of replies. It has no policy: what to install is its users' affair.
//
// Messages are pointers to structs; [Append] writes one into a buffer without allocating, [Decode] reads one, and the result shares no
// memory with its input. A [Match] is a list of OXM fields. Section numbers in comments are those of the OpenFlow Switch Specification
// 1.3.5. Extensions: ONF EXT-230 (bundles for 1.3) and those of Nicira (Open vSwitch) that a driver needs.
// What is unknown (an action, an OXM field, an experimenter) is kept raw, so that other controllers' entries can be read.
//
// Package openflow/fake is a switch in memory for tests.
package openflow
