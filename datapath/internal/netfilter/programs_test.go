package netfilter

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"
)

func TestServicesOfIPVS(t *testing.T) {
	const headings = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
	for text, want := range map[string]bool{
		"": false, headings: false, headings + "TCP  0A090001:0050 rr\n  -> 0A090002:0050      Masq    1      0          0\n": true, headings + "FWM  00000001 rr\n": true,
	} {
		if got := balances(text); got != want {
			t.Errorf("%q lists services: %v, want %v", text, got, want)
		}
	}
}

func TestTablesOfEbtablesThatAreBuiltIn(t *testing.T) {
	dir := t.TempDir()
	builtin, config := filepath.Join(dir, "modules.builtin"), filepath.Join(dir, "config.gz")
	has := func() bool {
		t.Helper()
		has, err := madeWithEbtables(builtin, config)
		if err != nil {
			t.Fatal(err)
		}
		return has
	}
	if has() {
		t.Error("a kernel that says nothing has them")
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	packed := func(text string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	write(config, packed("CONFIG_BRIDGE_EBT_LIMIT=y\n# CONFIG_BRIDGE_EBT_T_FILTER is not set\nCONFIG_BRIDGE_EBT_T_NAT=m\n"))
	write(builtin, "kernel/net/bridge/netfilter/ebt_limit.ko\n")
	if has() {
		t.Error("one without the tables has them")
	}
	write(builtin, "kernel/net/bridge/bridge.ko\nkernel/net/bridge/netfilter/ebtable_filter.ko\n")
	if !has() {
		t.Error("one with them in its list of modules has none")
	}
	write(builtin, "")
	write(config, packed("CONFIG_BRIDGE_EBT_BROUTE=y\n"))
	if !has() {
		t.Error("one with them in its configuration has none")
	}
	write(config, "no gzip")
	if _, err := madeWithEbtables(builtin, config); err == nil {
		t.Error("what cannot be read is no error")
	}
}
