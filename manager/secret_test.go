package manager_test

import (
	"bytes"
	"strings"
	"testing"

	"weir.dev/weir/manager"
	"weir.dev/weir/store/mem"
)

func TestSecretsAreEncryptedWithTheKeyThatAllManagersHave(t *testing.T) {
	s := mem.New()
	stored := func() []byte { return must(s.Get(ctx(t), "secret/lldp2"))(t).Value }
	with := func(key string) *manager.Manager {
		o := manager.Options{Store: s}
		if key != "" {
			o.SecretKey = bytes.Repeat([]byte(key), 32)
		}
		return must(manager.New(o))(t)
	}
	plain := must(with("").Keys.LLDPKey(ctx(t)))(t)
	before := stored()
	if again := must(with("a").Keys.LLDPKey(ctx(t)))(t); !bytes.Equal(again, plain) {
		t.Error("it changed when it was encrypted")
	}
	after := stored()
	if bytes.Equal(before, after) || bytes.Contains(after, []byte(`"value":"`+strings.Split(string(before), `"value":"`)[1][:20])) {
		t.Errorf("it is stored as it was: %s", after)
	}
	if again := must(with("a").Keys.LLDPKey(ctx(t)))(t); !bytes.Equal(again, plain) || !bytes.Equal(stored(), after) {
		t.Error("another manager with the same key reads something else, or writes it anew")
	}
	for key, says := range map[string]string{"": "--secret-key", "b": "another key"} {
		if _, err := with(key).Keys.LLDPKey(ctx(t)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("with the key %q: %v, want %q", key, err, says)
		}
	}
}
