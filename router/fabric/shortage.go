package fabric

import "fmt"

// Short tells of a table that does not hold the entries of default forwarding.
type Short struct {
	Table    uint8
	Size     int // entries that it holds
	Others   int // of these, left to others than Weir
	Needs    int // entries of default forwarding, those of all stations included
	Stations int // of these, of stations
	LeftOut  int // of these, left out
}

// String says it to people, with what can be done.
func (s Short) String() string {
	text := fmt.Sprintf("table %d holds %d entries", s.Table, s.Size)
	if s.Others > 0 {
		text += fmt.Sprintf(", %d of them are left to others", s.Others)
	}
	text += fmt.Sprintf("; default forwarding needs %d", s.Needs)
	if s.LeftOut == 0 {
		return text + ": it is not whole; use a switch with a larger table, or fewer of its ports"
	}
	return text + fmt.Sprintf(", %d of them for stations: frames to %d stations are flooded, and a quarter of the table is kept for policies; use a switch with a larger table, or fewer stations",
		s.Stations, s.LeftOut)
}
