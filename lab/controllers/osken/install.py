"""The peer of the fabric's benchmark: os-ken builds, encodes and installs flow-mods that are given to it, and says how long that took.

usage: install.py serve PORT FILE
       install.py encode FILE

FILE holds one JSON object: datapath id (decimal) -> list of entries [table, priority, cookie, match, actions, goto]. match is {field: value or
[value, mask]} in os-ken's names; actions is a list of ["output", port, max_len], ["push_vlan", ethertype], ["pop_vlan"] and ["set_field", field, value];
goto 0 is none.

serve: once all these switches have connected to 127.0.0.1:PORT, it sends a barrier to each, starts the clock, builds and sends every flow-mod, sends a
barrier to each, and prints {"switches", "flow_mods", "seconds", "cpu"} when the last barrier is answered. encode: it builds and encodes every flow-mod
without sending, and prints {"flow_mods", "bytes", "seconds", "cpu"}.
"""
import json
import os
import sys
import time

from os_ken import cfg
from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib import hub
from os_ken.ofproto import ofproto_protocol, ofproto_v1_3

with open(sys.argv[-1]) as f:
    ENTRIES = {int(k): v for k, v in json.load(f).items()}
for _entries in ENTRIES.values():
    for _e in _entries:
        _e[3] = {k: tuple(v) if isinstance(v, list) else v for k, v in _e[3].items()}  # os-ken wants (value, mask)


def action(parser, a):
    if a[0] == "output":
        return parser.OFPActionOutput(a[1], a[2])
    if a[0] == "push_vlan":
        return parser.OFPActionPushVlan(a[1])
    if a[0] == "pop_vlan":
        return parser.OFPActionPopVlan()
    return parser.OFPActionSetField(**{a[1]: a[2]})


def flow_mod(dp, entry):
    table, priority, cookie, match, actions, goto = entry
    ofp, parser = dp.ofproto, dp.ofproto_parser
    instructions = []
    if actions:
        instructions.append(parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, [action(parser, a) for a in actions]))
    if goto:
        instructions.append(parser.OFPInstructionGotoTable(goto))
    return parser.OFPFlowMod(datapath=dp, cookie=cookie, table_id=table, priority=priority, match=parser.OFPMatch(**match), instructions=instructions)


class Install(app_manager.OSKenApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.datapaths = {}
        self.waiting = set()
        self.phase = "connect"
        self.begun = 0.0
        self.cpu = 0.0

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def features(self, ev):
        self.datapaths[ev.msg.datapath.id] = ev.msg.datapath
        if self.phase == "connect" and set(ENTRIES) <= set(self.datapaths):
            self.phase = "ready"
            self.barriers()

    @set_ev_cls(ofp_event.EventOFPBarrierReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def barrier(self, ev):
        self.waiting.discard(ev.msg.datapath.id)
        if self.waiting:
            return
        if self.phase == "ready":
            self.phase = "install"
            self.begun, self.cpu = time.monotonic(), time.process_time()
            for dpid, entries in ENTRIES.items():
                dp = self.datapaths[dpid]
                for e in entries:
                    dp.send_msg(flow_mod(dp, e))
            self.barriers()
        elif self.phase == "install":
            took, cpu = time.monotonic() - self.begun, time.process_time() - self.cpu
            count = sum(len(e) for e in ENTRIES.values())
            print(json.dumps({"switches": len(ENTRIES), "flow_mods": count, "seconds": took, "cpu": cpu}), flush=True)
            os._exit(0)  # nothing to take leave of

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def refused(self, ev):
        print("switch %d refuses: type %d, code %d" % (ev.msg.datapath.id, ev.msg.type, ev.msg.code), file=sys.stderr, flush=True)
        os._exit(1)

    def barriers(self):
        self.waiting = set(ENTRIES)
        for dpid in ENTRIES:
            dp = self.datapaths[dpid]
            dp.send_msg(dp.ofproto_parser.OFPBarrierRequest(dp))


def encode():
    dp = ofproto_protocol.ProtocolDesc(version=ofproto_v1_3.OFP_VERSION)
    begun, cpu = time.monotonic(), time.process_time()
    count, size = 0, 0
    for entries in ENTRIES.values():
        for e in entries:
            m = flow_mod(dp, e)
            m.set_xid(count)
            m.serialize()
            count, size = count + 1, size + len(m.buf)
    print(json.dumps({"flow_mods": count, "bytes": size, "seconds": time.monotonic() - begun, "cpu": time.process_time() - cpu}), flush=True)


def serve():
    cfg.CONF(args=[], project="os_ken")
    cfg.CONF.set_override("ofp_listen_host", "127.0.0.1")
    cfg.CONF.set_override("ofp_tcp_listen_port", int(sys.argv[2]))
    m = app_manager.AppManager.get_instance()
    m.load_apps(["os_ken.controller.ofp_handler"])
    m.applications_cls["Install"] = Install
    contexts = m.create_contexts()
    hub.joinall(m.instantiate_apps(**contexts))


if __name__ == "__main__":
    encode() if sys.argv[1] == "encode" else serve()
