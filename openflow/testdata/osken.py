#!/usr/bin/env python3
"""Writes osken.txt: messages as os-ken 4.2 encodes them, a line each: name, hex. See README.md."""
import json
import struct
import sys

from os_ken.ofproto import ofproto_v1_3 as o
from os_ken.ofproto import ofproto_v1_3_parser as p
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

dp = ProtocolDesc(version=o.OFP_VERSION)
ALL = dict(buffer_id=o.OFP_NO_BUFFER, out_port=o.OFPP_ANY, out_group=o.OFPG_ANY)


def apply(*actions):
    return [p.OFPInstructionActions(o.OFPIT_APPLY_ACTIONS, list(actions))]


def flow(match, instructions=(), **kw):
    return p.OFPFlowMod(dp, match=match, instructions=list(instructions), **{**ALL, **kw})


def messages():
    out = p.OFPActionOutput
    yield "hello", p.OFPHello(dp)  # os-ken does not encode the bitmap
    yield "echo-request", p.OFPEchoRequest(dp, data=b"weir")
    yield "features-request", p.OFPFeaturesRequest(dp)
    yield "set-config", p.OFPSetConfig(dp, o.OFPC_FRAG_NORMAL, 0xffff)
    yield "barrier", p.OFPBarrierRequest(dp)
    yield "role", p.OFPRoleRequest(dp, o.OFPCR_ROLE_MASTER, 7)
    yield "set-async", p.OFPSetAsync(dp, [7, 0], [7, 7], [15, 0])
    yield "packet-out", p.OFPPacketOut(dp, buffer_id=o.OFP_NO_BUFFER, in_port=o.OFPP_CONTROLLER, actions=[out(2, 0)], data=bytes(12) + b"\x88\xb5" + bytes(46))
    yield "flow-steering", flow(p.OFPMatch(in_port=2, eth_type=0x0800, ipv4_src="10.0.0.1"), apply(out(1, 0)), cookie=0xab, priority=100)
    yield "flow-cidr", flow(p.OFPMatch(eth_type=0x0800, ipv4_src=("10.1.0.0", "255.255.0.0"), ipv4_dst=("10.2.0.0", "255.255.0.0")), apply(out(1, 0)))
    yield "flow-mac", flow(p.OFPMatch(in_port=1, eth_dst=("01:00:00:00:00:00", "01:00:00:00:00:00"), eth_src="02:00:00:00:00:01"),
                           apply(out(o.OFPP_FLOOD, 0)))
    yield "flow-tcp", flow(p.OFPMatch(eth_type=0x0800, ip_proto=6, tcp_src=1000, tcp_dst=80), apply(out(o.OFPP_CONTROLLER, 0xffff)))
    yield "flow-udp6", flow(p.OFPMatch(eth_type=0x86dd, ip_proto=17, ipv6_src=("fd00::", "ffff:ffff:ffff:ffff::"), udp_dst=53), apply(out(1, 0)))
    yield "flow-arp", flow(p.OFPMatch(eth_type=0x0806, arp_op=1, arp_spa="10.0.0.1", arp_tpa="10.0.0.2", arp_sha="02:00:00:00:00:01"))
    yield "flow-icmpv6", flow(p.OFPMatch(eth_type=0x86dd, ip_proto=58, icmpv6_type=135, ipv6_nd_target="fd00::9"))
    yield "flow-tag", flow(p.OFPMatch(vlan_vid=0x1000 | 3600), apply(p.OFPActionPopVlan(), out(2, 0)))
    yield "flow-push", flow(p.OFPMatch(in_port=1), apply(p.OFPActionPushVlan(0x88a8), p.OFPActionSetField(vlan_vid=0x1000 | 3600), out(2, 0)))
    yield "flow-set", flow(p.OFPMatch(in_port=1), apply(p.OFPActionSetField(eth_dst="02:00:00:00:00:09"), p.OFPActionSetQueue(4),
                                                        p.OFPActionGroup(5), p.OFPActionDecNwTtl()))
    yield "flow-tables", flow(p.OFPMatch(metadata=(5, 0xff)), [p.OFPInstructionWriteMetadata(7, 0xf), p.OFPInstructionGotoTable(3),
                                                              p.OFPInstructionMeter(2)], table_id=1)
    yield "flow-write", flow(p.OFPMatch(), [p.OFPInstructionActions(o.OFPIT_CLEAR_ACTIONS, []),
                                            p.OFPInstructionActions(o.OFPIT_WRITE_ACTIONS, [out(1, 0)])])
    yield "flow-delete", flow(p.OFPMatch(), command=o.OFPFC_DELETE, table_id=o.OFPTT_ALL, cookie=1 << 48, cookie_mask=0xffff << 48)
    yield "flow-timeouts", flow(p.OFPMatch(in_port=1), idle_timeout=10, hard_timeout=20, flags=o.OFPFF_SEND_FLOW_REM, command=o.OFPFC_MODIFY_STRICT)
    yield "flow-tunnel", flow(p.OFPMatch(tunnel_id=0x10), apply(p.OFPActionSetField(tunnel_id=0x11), out(1, 0)))
    yield "flow-registers", flow(p.OFPMatch(reg0=5), apply(p.NXActionRegLoad(31, "reg3", 5), p.NXActionResubmitTable(o.OFPP_IN_PORT & 0xffff, 4)))
    yield "flow-move", flow(p.OFPMatch(in_port=1), apply(p.NXActionRegMove("reg1", "reg2", 16, 0, 8)))
    yield "desc-request", p.OFPDescStatsRequest(dp, 0)
    yield "flow-stats-request", p.OFPFlowStatsRequest(dp, 0, o.OFPTT_ALL, o.OFPP_ANY, o.OFPG_ANY, 1, 1, p.OFPMatch(in_port=1))
    yield "aggregate-request", p.OFPAggregateStatsRequest(dp, 0, 2, o.OFPP_ANY, o.OFPG_ANY, 0, 0, p.OFPMatch())
    yield "port-stats-request", p.OFPPortStatsRequest(dp, 0, o.OFPP_ANY)
    yield "port-desc-request", p.OFPPortDescStatsRequest(dp, 0)
    yield "table-features-request", p.OFPTableFeaturesStatsRequest(dp, 0, [])
    yield "bundle-open", p.ONFBundleCtrlMsg(dp, 5, o.ONF_BCT_OPEN_REQUEST, o.ONF_BF_ATOMIC | o.ONF_BF_ORDERED, [])
    inner = flow(p.OFPMatch(in_port=1), apply(out(2, 0)), priority=5)
    inner.set_xid(7)
    yield "bundle-add", p.ONFBundleAddMsg(dp, 5, o.ONF_BF_ATOMIC, inner, [])
    yield "error", p.OFPErrorMsg(dp, type_=o.OFPET_FLOW_MOD_FAILED, code=o.OFPFMFC_TABLE_FULL, data=b"\x04\x14\x00\x08\x00\x00\x00\x09")


def encode():
    for name, m in messages():
        m.set_xid(7)
        m.serialize()
        yield name, bytes(m.buf)


def read(path):
    """The other way: os-ken decodes what Weir has encoded; prints name, message, and what os-ken sees in it as JSON."""
    for line in open(path):
        name, text = line.split()
        b = bytes.fromhex(text)
        version, kind, size, xid = struct.unpack("!BBHI", b[:8])
        assert size == len(b), name
        m = p.msg_parser(dp, version, kind, size, xid, b)
        print(name, text, json.dumps(m.to_jsondict(), sort_keys=True))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        read(sys.argv[1])
    else:
        for name, b in encode():
            print(name, b.hex())
