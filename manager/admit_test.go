package manager_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/intent"
)

// Hosts are asked about a change of policies alone, too: a switch may have no room for them.
func TestHostsAreAskedAboutPolicies(t *testing.T) {
	asked := 0
	b := start(t, manager.Options{Admit: func(_ context.Context, _, changed api.Document) intent.Verdict {
		asked++
		if _, is := changed.Policies["many"]; is {
			return intent.Verdict{Problems: []api.Problem{{Path: "policies.many", Message: "switch table full"}}}
		}
		return intent.Verdict{}
	}})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	if asked != 1 {
		t.Errorf("asked %d times about a whole document", asked)
	}
	if _, err := b.Policies().Put(ctx(t), "many", api.PolicySpec{From: "alice", Match: []string{"udp/53"}, Chain: "web"}); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a policy that a host refuses: %v", err)
	}
	if _, err := b.Policies().Put(ctx(t), "few", api.PolicySpec{From: "alice", Match: []string{"udp/53"}, Chain: "web"}); err != nil {
		t.Errorf("a policy that no host refuses: %v", err)
	}
	if asked != 3 {
		t.Errorf("asked %d times, want 3", asked)
	}
}

// Of a field that is wrong by itself the answer says so once, and not what hosts make of it as well.
func TestAWrongFieldIsToldOnce(t *testing.T) {
	b := start(t, manager.Options{Admit: func(context.Context, api.Document, api.Document) intent.Verdict {
		return intent.Verdict{Problems: []api.Problem{
			{Path: "functions.fw.runtime", Message: "host local has no runtime podman"}, {Path: "functions.fw.image", Message: "no such image"},
		}}
	}})
	_, err := b.Functions().Put(ctx(t), "fw", api.FunctionSpec{Image: "firewall", Runtime: "podman"})
	var refused *api.ProblemError
	if !errors.As(err, &refused) || len(refused.Problems) != 2 || !strings.HasPrefix(refused.Problems[0].Message, `runtime "podman": want `) || refused.Problems[1].Message != "no such image" {
		t.Errorf("%+v", err)
	}
}
