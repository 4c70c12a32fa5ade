package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"weir.dev/weir/catalogue/nf"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Rules      string   `json:"rules"`
	RuleFiles  []string `json:"rule_files"`
	HomeNets   []string `json:"home_nets"`
	Thresholds string   `json:"thresholds"`
	Depth      size     `json:"depth"`
	Encrypted  *bool    `json:"bypass_encrypted"`
	Overload   string   `json:"overload"`
}

// Bounds of what can be asked for.
const (
	minDepth     = 16 << 10
	maxDepth     = 16 << 20
	defaultDepth = 1 << 20
	maxRules     = 256 << 10
	maxThreshold = 64 << 10
	maxList      = 100
)

// shipped is where the image has files of rules.
const shipped = "/etc/suricata/rules"

var ruleFile = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*\.rules$`)

func parseConfig(raw []byte) (config, error) {
	cfg := config{Depth: defaultDepth, Overload: "drop"}
	if err := nf.DecodeConfig(raw, &cfg); err != nil {
		return config{}, err
	}
	switch {
	case len(cfg.Rules) > maxRules:
		return config{}, fmt.Errorf("rules: %d bytes: want at most %d; put more into a file of rules in an image of your own", len(cfg.Rules), maxRules)
	case hasScripts(cfg.Rules):
		return config{}, errors.New("rules: the keyword lua runs a script: want a rule without it")
	case len(cfg.Thresholds) > maxThreshold:
		return config{}, fmt.Errorf("thresholds: %d bytes: want at most %d", len(cfg.Thresholds), maxThreshold)
	case len(cfg.RuleFiles) > maxList || len(cfg.HomeNets) > maxList:
		return config{}, fmt.Errorf("rule_files, home_nets: want at most %d each", maxList)
	case cfg.Depth < minDepth || cfg.Depth > maxDepth:
		return config{}, fmt.Errorf("depth %d bytes: want 16KB to 16MB", cfg.Depth)
	case cfg.Overload != "drop" && cfg.Overload != "pass":
		return config{}, fmt.Errorf("overload %q: want drop or pass", cfg.Overload)
	}
	for _, f := range cfg.RuleFiles {
		if !ruleFile.MatchString(f) {
			return config{}, fmt.Errorf("rule_files: %q: want the name of a file in %s, such as stream-events.rules", f, shipped)
		}
	}
	for i, n := range cfg.HomeNets {
		p, err := netip.ParsePrefix(n)
		if addr, aerr := netip.ParseAddr(n); aerr == nil {
			p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil || p.Addr().Zone() != "" {
			return config{}, fmt.Errorf("home_nets: %q: want a network such as 10.0.0.0/8", n)
		}
		cfg.HomeNets[i] = p.Masked().String()
	}
	return cfg, nil
}

// size is in bytes.
type size uint64

func (s *size) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return fmt.Errorf("%s: want a text as \"1MB\"", raw)
	}
	for unit, factor := range map[string]uint64{"KB": 1 << 10, "MB": 1 << 20} {
		if n, ok := strings.CutSuffix(text, unit); ok {
			v, err := strconv.ParseUint(n, 10, 32)
			*s = size(v * factor)
			if err != nil {
				return fmt.Errorf("%q: want it as \"1MB\"", text)
			}
			return nil
		}
	}
	return fmt.Errorf("%q: want it as \"1MB\"", text)
}

// Files that Suricata reads and makes, in a directory of ours.
const (
	yamlFile      = "suricata.yaml"
	rulesFile     = "config.rules"
	thresholdFile = "threshold.config"
	ageFile       = "age.lua"
	controlSocket = "control.sock"
	eveSocket     = "eve.sock"
)

// unread drops what Suricata does not look into, and stations take: datagrams whose length field is less than their header (one of IPv6 that has 0 there is taken up to the
// end of its packet), and packets of IPv6 in which an extension header is cut by the payload length. Of the latter Linux takes those with length 0 and a hop-by-hop header, as
// jumbograms have them, with all that is there.
var unread = fmt.Sprintf(`drop pkthdr any any -> any any (msg:"weir: UDP without a length"; decode-event:udp.len_invalid; noalert; sid:%d;)
drop pkthdr any any -> any any (msg:"weir: IPv6 without a length"; decode-event:ipv6.trunc_exthdr; noalert; sid:%d;)
`, sidShort, sidLengthless)

// render writes what Suricata reads into a directory; it looks for its sockets in home. All texts that come from the configuration are checked above, or
// are files of their own. settles: the switch is told of flows that are bypassed (see settle.go).
func (c config) render(dir, home string, ports []string, settles bool) error {
	files := map[string]string{rulesFile: c.Rules + "\n", thresholdFile: c.Thresholds + "\n"}
	if settles {
		files[rulesFile] = settleRules(filepath.Join(dir, ageFile)) + marking(c.Rules) + "\n"
		files[ageFile] = ageScript
	}
	closed := c.Overload == "drop" && len(ports) == 2
	if closed {
		files[rulesFile] = unread + files[rulesFile]
	}
	ruleFiles := []string{filepath.Join(dir, rulesFile)}
	for _, f := range c.RuleFiles {
		path := filepath.Join(shipped, f)
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("rule_files: %w", err)
		}
		if marked := marking(string(text)); settles && marked != string(text) {
			path = filepath.Join(dir, "marked-"+f)
			files["marked-"+f] = marked
		}
		ruleFiles = append(ruleFiles, path)
	}
	var text bytes.Buffer
	err := suricataYAML.Execute(&text, map[string]any{
		"Home": c.home(), "External": c.external(), "Dir": dir, "Sockets": home, "Ports": ports, "Depth": uint64(c.Depth), "RuleFiles": ruleFiles,
		"Encryption": map[bool]string{true: "bypass", false: "track-only"}[!settles && (c.Encrypted == nil || *c.Encrypted)], "Settles": settles, "Remembered": remembered,
		"Full": map[bool]string{true: "drop-packet", false: "ignore"}[closed], "Unread": map[bool]string{true: "drop-flow", false: "ignore"}[closed],
		"Invalid": map[bool]string{true: "yes", false: "no"}[closed], "Inline": len(ports) == 2,
	})
	if err != nil {
		return err
	}
	files[yamlFile] = text.String()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (c config) home() string {
	if len(c.HomeNets) == 0 {
		return "any"
	}
	return "[" + strings.Join(c.HomeNets, ",") + "]"
}

func (c config) external() string {
	if len(c.HomeNets) == 0 {
		return "any"
	}
	return "!$HOME_NET"
}

// suricataYAML bounds what Suricata keeps of connections at about 270 MiB. Connections that were there before it are inspected from where they are: a changed
// function must not end them.
var suricataYAML = template.Must(template.New(yamlFile).Parse(`%YAML 1.1
---
vars:
  address-groups:
    HOME_NET: "{{.Home}}"
    EXTERNAL_NET: "{{.External}}"
    HTTP_SERVERS: "$HOME_NET"
    SMTP_SERVERS: "$HOME_NET"
    SQL_SERVERS: "$HOME_NET"
    DNS_SERVERS: "$HOME_NET"
    TELNET_SERVERS: "$HOME_NET"
    AIM_SERVERS: "$EXTERNAL_NET"
    DC_SERVERS: "$HOME_NET"
    DNP3_SERVER: "$HOME_NET"
    DNP3_CLIENT: "$HOME_NET"
    MODBUS_CLIENT: "$HOME_NET"
    MODBUS_SERVER: "$HOME_NET"
    ENIP_CLIENT: "$HOME_NET"
    ENIP_SERVER: "$HOME_NET"
  port-groups:
    HTTP_PORTS: "80"
    SHELLCODE_PORTS: "!80"
    ORACLE_PORTS: 1521
    SSH_PORTS: 22
    DNP3_PORTS: 20000
    MODBUS_PORTS: 502
    FILE_DATA_PORTS: "[$HTTP_PORTS,110,143]"
    FTP_PORTS: 21
    GENEVE_PORTS: 6081
    VXLAN_PORTS: 4789
    TEREDO_PORTS: 3544
default-log-dir: {{.Dir}}
stats: {enabled: yes, interval: 5}
outputs:
  - eve-log:
      enabled: yes
      filetype: unix_stream
      filename: {{.Sockets}}/` + eveSocket + `
      types:
        - alert: {metadata: no, tagged-packets: no, verdict: yes}
        - stats: {totals: yes, threads: no, deltas: no}
logging:
  default-log-level: notice
  outputs:
    - console: {enabled: yes}
{{- if .Settles}}
security: {lua: {allow-rules: true}}
{{- end}}
unix-command: {enabled: yes, filename: {{.Sockets}}/` + controlSocket + `}
af-packet:
{{- $inline := .Inline}}{{$ports := .Ports}}
{{- range $i, $p := .Ports}}
  - interface: {{$p}}
    threads: 1
    cluster-id: {{if eq $i 0}}98{{else}}99{{end}}
    cluster-type: cluster_flow
    defrag: no
    use-mmap: yes
    mmap-locked: no
    tpacket-v3: {{if $inline}}no{{else}}yes{{end}}
    ring-size: 4096
    checksum-checks: yes
{{- if $inline}}
    copy-mode: ips
    copy-iface: {{if eq $i 0}}{{index $ports 1}}{{else}}{{index $ports 0}}{{end}}
{{- end}}
{{- end}}
exception-policy: ignore
app-layer:
  error-policy: {{.Unread}}
  protocols:
    http: {enabled: yes, memcap: 32mb}
    http2: {enabled: yes}
    tls: {enabled: yes, encryption-handling: {{.Encryption}}, detection-ports: {dp: 443}}
    ssh: {enabled: yes}
    dns: {tcp: {enabled: yes, detection-ports: {dp: 53}}, udp: {enabled: yes, detection-ports: {dp: 53}}}
    smtp: {enabled: yes}
    ftp: {enabled: yes, memcap: 16mb}
    smb: {enabled: yes, detection-ports: {dp: "139, 445"}}
    quic: {enabled: yes}
stream:
  memcap: 32mb
  memcap-policy: {{.Full}}
  midstream: true
  midstream-policy: ignore
  inline: {{if .Inline}}yes{{else}}no{{end}}
  checksum-validation: yes
  bypass: {{if .Settles}}no{{else}}yes{{end}}
  drop-invalid: {{.Invalid}}
  reassembly: {memcap: 96mb, memcap-policy: {{.Full}}, depth: {{.Depth}}, toserver-chunk-size: 2560, toclient-chunk-size: 2560, randomize-chunk-size: yes}
flow: {memcap: 64mb, memcap-policy: {{.Full}}, hash-size: 65536, prealloc: 1000, emergency-recovery: 30}
{{- if .Settles}}
flow-timeouts: {tcp: {bypassed: {{.Remembered}}}, udp: {bypassed: {{.Remembered}}}}
{{- end}}
defrag: {memcap: 16mb, memcap-policy: {{.Full}}, hash-size: 4096, trackers: 8192, max-frags: 8192, prealloc: no, timeout: 30}
host: {hash-size: 1024, prealloc: 100, memcap: 8mb}
ippair: {hash-size: 1024, prealloc: 100, memcap: 8mb}
detect: {profile: medium, sgh-mpm-context: auto}
classification-file: /etc/suricata/classification.config
reference-config-file: /etc/suricata/reference.config
threshold-file: {{.Dir}}/` + thresholdFile + `
rule-files:
{{- range .RuleFiles}}
  - {{.}}
{{- end}}
`))
