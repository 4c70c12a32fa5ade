package flow

// Side is a port of a function.
type Side uint8

const (
	In Side = iota
	Out
	Tap
	Sides // how many there are
)

func (s Side) String() string { return [...]string{"in", "out", "tap"}[s] }

// Of names the port of a function, as every part of Weir does: "function/fw/in".
func (s Side) Of(function string) string { return "function/" + function + "/" + s.String() }

// SidesOf are the ports that a tap has, or a function that forwards.
func SidesOf(tap bool) []Side {
	if tap {
		return []Side{Tap}
	}
	return []Side{In, Out}
}
