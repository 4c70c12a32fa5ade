package platform

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TRY=names to try
func TestTry(t *testing.T) {
	for _, name := range strings.Split(os.Getenv("TRY"), ",") {
		t.Run(name, func(t *testing.T) {
			k, ok := Find(name)
			if !ok {
				t.Fatal("no such kind")
			}
			o := testOptions(t)
			if why := k.Check(o); why != "" {
				t.Fatal(why)
			}
			begin := time.Now()
			p, err := k.Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("open %s", time.Since(begin))
			defer func() {
				begin := time.Now()
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				t.Logf("close %s", time.Since(begin))
			}()
			for _, l := range []Layout{{Chain: 1}, {Chain: 3}, {Chain: 2, Parallel: 2}} {
				if l.Parallel > 1 && !k.Splits {
					continue
				}
				begin := time.Now()
				path, err := p.Path(t.Context(), l)
				if err != nil {
					t.Error(err)
					return
				}
				t.Logf("%+v in %s: %+v", l, time.Since(begin), path)
				if err := p.(Resting).Rest(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
