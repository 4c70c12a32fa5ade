package api

import (
	"slices"
	"strings"
)

// Sources of events besides hosts and functions, see SourceOf.
const (
	SourceManager = "manager"
	SourceRouter  = "router"
)

// SourceOf is the source of the events that a host or a function raises: host/NAME, function/NAME.
func SourceOf(kind Kind, name string) string { return string(kind) + "/" + name }

// Reasons of events that Weir itself raises, sorted. Functions may not use them.
func Reasons() []string {
	return []string{
		"AssignmentRefused", "BridgeLearns", "ClockSkew", "EndpointLost", "EndpointRecovered", "EntriesChanged", "EntryRefused", "EventRefused",
		"EventsDropped", "EventsLost", "FunctionDied", "FunctionKept", "FunctionMoved", "FunctionNotPlaced", "FunctionRecovered", "FunctionRestarting",
		"FunctionUnhealthy", "HostBack", "HostClaimsMore", "HostDrained", "HostDraining", "HostJoined", "HostLost", "HostRemoved", "HostReplaced", "LinkForged", "LinkLost",
		"LinkRestored", "NoTunnels", "NothingComesBack", "OneFloodTree", "PortFlapping", "PortLooped", "RefusedArp", "RefusedDhcp", "RefusedMac",
		"RefusedNd", "RefusedRa", "RefusedSource", "RefusedUnreadable", "ReloadFailed", "RingsRefused", "RuntimeBack", "RuntimeLost", "StateLost", "StationFlapping", "StationMoved", "StationRefused", "SwitchCertified",
		"SwitchConnected", "SwitchForgotten", "SwitchLost", "SwitchNameTaken", "SwitchRefused", "SwitchRevoked", "TableFull", "TableLargeEnough",
		"TableTooSmall", "TooManyStations", "TunnelsPlain", "TwoFloodTrees", "UplinkFailed",
	}
}

// ReservedReason tells whether a reason is one that Weir itself uses, in upper or lower case.
func ReservedReason(reason string) bool {
	return slices.ContainsFunc(Reasons(), func(r string) bool { return strings.EqualFold(r, reason) })
}

// maxReason bounds a function's reason in bytes.
const maxReason = 256

// CheckReason says what is wrong with a reason that a function gives, "" if nothing is.
func CheckReason(reason string) string {
	other := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.')
	}
	switch {
	case reason == "" || len(reason) > maxReason || strings.ContainsFunc(reason, other):
		return "want one word of at most 256 letters, digits, and _-., for example PortBlocked"
	case ReservedReason(reason):
		return reason + " is reserved for Weir's own events: want another word, for example App" + reason
	}
	return ""
}
