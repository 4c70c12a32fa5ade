package api

import "testing"

// A status has one condition of each type, and the first one's message.
func TestConditionsOfAStatus(t *testing.T) {
	var s FunctionStatus
	look := func(message string, types ...ConditionType) {
		t.Helper()
		if s.Message != message || len(s.Conditions) != len(types) {
			t.Fatalf("%q %+v", s.Message, s.Conditions)
		}
		for i, x := range types {
			if s.Conditions[i].Type != x {
				t.Errorf("%+v", s.Conditions)
			}
		}
	}
	s.Note(Condition{Type: ConditionSilent, Message: "silent"})
	s.Note(Condition{Type: ConditionLearning, Message: "learns"})
	look("silent", ConditionSilent, ConditionLearning)
	s.Note(Condition{Type: ConditionSilent, Message: "silent for long"})
	look("learns", ConditionLearning, ConditionSilent)
	s.Drop(ConditionLearning)
	look("silent for long", ConditionSilent)
	s.Drop(ConditionClosed)
	s.Say(Condition{Type: ConditionUnhealthy, Message: "dead"})
	look("dead", ConditionUnhealthy)
	s.Say()
	look("")
}
