package backup_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api/backup"
)

func example(t *testing.T) ([]byte, []backup.Value) {
	t.Helper()
	var values []backup.Value
	for n := range 20 {
		values = append(values, backup.Value{Key: fmt.Sprintf("policy/p%d", n), Text: []byte(strings.Repeat("x", 10*n))})
	}
	var b bytes.Buffer
	if err := backup.Write(&b, backup.Header{Version: "v1", Made: time.Unix(1, 0).UTC(), Revision: 7, SecretsKey: "k"}, values); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), values
}

func TestABackupIsReadBack(t *testing.T) {
	text, want := example(t)
	h, have, err := backup.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if h.Revision != 7 || h.Values != 20 || h.SecretsKey != "k" {
		t.Errorf("header %+v", h)
	}
	for n := range want { // nil and empty are one
		want[n].Text = append([]byte{}, want[n].Text...)
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Error(d)
	}
}

func TestADamagedBackupIsRefused(t *testing.T) {
	text, _ := example(t)
	for at := range text {
		bad := bytes.Clone(text)
		bad[at] ^= 1 << (at % 8)
		if _, _, err := backup.Read(bytes.NewReader(bad)); err == nil && string(bytes.TrimSpace(bad)) != string(bytes.TrimSpace(text)) {
			t.Fatalf("bit %d of byte %d of %d: accepted: %q", at%8, at, len(text), bad[max(0, at-20):min(len(bad), at+20)])
		}
		if _, _, err := backup.Read(bytes.NewReader(text[:at])); err == nil {
			t.Fatalf("cut at %d of %d: accepted", at, len(text))
		}
	}
	if _, _, err := backup.Read(bytes.NewReader(append(text, '\n'))); err == nil {
		t.Error("a line too many is accepted")
	}
}
