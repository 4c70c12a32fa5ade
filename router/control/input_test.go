package control

import (
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
)

// A host takes a policy that is being deleted down when it has been given back to it.
func TestAPolicyIsGivenBackAlthoughItIsBeingDeleted(t *testing.T) {
	l := newLoop(&Controller{o: Options{Now: time.Now}})
	now := time.Now()
	l.intent.policies["back"] = api.Policy{Meta: api.Meta{Deleting: &now}, Placement: &api.Placement{Host: "h1", FormerRouter: true, Decision: 2}}
	l.intent.policies["ours"] = api.Policy{Meta: api.Meta{Deleting: &now}, Placement: &api.Placement{Router: true, Decision: 3}}
	var in fabric.Input
	l.policyInput(&in)
	if _, there := l.versions["back"]; !there || len(l.versions) != 1 || len(in.Policies) != 0 {
		t.Errorf("versions %v, policies %v", l.versions, in.Policies)
	}
}

// Where a host has not steered a policy by itself, nothing passes it before its way is ready.
func TestAPolicyIsFreshAtHostsThatHaveNotSteeredIt(t *testing.T) {
	l := newLoop(&Controller{o: Options{Now: time.Now}})
	l.intent.policies["p"] = api.Policy{Placement: &api.Placement{Router: true, FormerHost: "h1"}}
	if l.fresh("p", "h1") || !l.fresh("p", "h2") {
		t.Error("h1 has steered it, h2 has not")
	}
	if l.inForce["p"] = true; l.fresh("p", "h2") {
		t.Error("it was in force")
	}
}
