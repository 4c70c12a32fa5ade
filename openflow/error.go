package openflow

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
)

// ErrorType is the class of an error that a peer reports (7.4.4).
type ErrorType uint16

// ErrorCode is an error's type and code in one number: 4<<16 | 9 is OFPBMC_BAD_PREREQ. Those of experimenters: 0xffff<<16 | exp_type.
type ErrorCode uint32

// Classes of errors that are written in a form of their own.
const (
	ErrHelloFailed  ErrorType = 0
	ErrExperimenter ErrorType = 0xffff
)

// Codes that this module sends or looks for; errorNames has all of them.
const (
	HelloIncompatible ErrorCode = 0 << 16

	BadVersion           ErrorCode = 1 << 16
	BadType              ErrorCode = 1<<16 | 1
	BadMultipart         ErrorCode = 1<<16 | 2
	BadExperimenter      ErrorCode = 1<<16 | 3
	BadExperimenterType  ErrorCode = 1<<16 | 4
	BadRequestEPERM      ErrorCode = 1<<16 | 5
	BadLen               ErrorCode = 1<<16 | 6
	BadRequestSlave      ErrorCode = 1<<16 | 10
	BadActionType        ErrorCode = 2 << 16
	BadActionLen         ErrorCode = 2<<16 | 1
	BadActionOutPort     ErrorCode = 2<<16 | 4
	BadActionTooMany     ErrorCode = 2<<16 | 7
	BadInstruction       ErrorCode = 3 << 16
	BadInstructionTable  ErrorCode = 3<<16 | 2
	BadInstructionLen    ErrorCode = 3<<16 | 7
	BadMatchType         ErrorCode = 4 << 16
	BadMatchLen          ErrorCode = 4<<16 | 1
	BadMatchField        ErrorCode = 4<<16 | 6
	BadMatchMask         ErrorCode = 4<<16 | 8
	BadMatchPrereq       ErrorCode = 4<<16 | 9
	TableFull            ErrorCode = 5<<16 | 1
	FlowBadTable         ErrorCode = 5<<16 | 2
	FlowOverlap          ErrorCode = 5<<16 | 3
	FlowBadCommand       ErrorCode = 5<<16 | 6
	RoleStale            ErrorCode = 11 << 16
	RoleBad              ErrorCode = 11<<16 | 2
	BundleBadID          ErrorCode = 0xffff<<16 | 2302
	BundleExist          ErrorCode = 0xffff<<16 | 2303
	BundleClosed         ErrorCode = 0xffff<<16 | 2304
	BundleOutOf          ErrorCode = 0xffff<<16 | 2305
	BundleBadType        ErrorCode = 0xffff<<16 | 2306
	BundleBadFlags       ErrorCode = 0xffff<<16 | 2307
	BundleMsgBadLen      ErrorCode = 0xffff<<16 | 2308
	BundleMsgBadXID      ErrorCode = 0xffff<<16 | 2309
	BundleMsgUnsupported ErrorCode = 0xffff<<16 | 2310
	BundleMsgTooMany     ErrorCode = 0xffff<<16 | 2312
	BundleFailed         ErrorCode = 0xffff<<16 | 2313
)

// Error is the peer's error message. It is also a Go error: what Request, Transact and others return is or wraps a *Error.
type Error struct {
	Code         ErrorCode
	Experimenter uint32 // if Code's type is ErrExperimenter
	Data         []byte // the first 64 bytes or more of the offending message; a text for ErrHelloFailed
}

// Kind is the class of the error.
func (e *Error) Kind() ErrorType { return ErrorType(e.Code >> 16) }

// Offending is the header of the message that the error is about, as far as the peer sent it back.
func (e *Error) Offending() (t Type, xid uint32, ok bool) {
	if e.Kind() == ErrHelloFailed || len(e.Data) < headerLen {
		return 0, 0, false
	}
	return Type(e.Data[1]), be.Uint32(e.Data[4:]), true
}

func (e *Error) Error() string {
	if e.Kind() == ErrHelloFailed {
		return fmt.Sprintf("openflow: peer says %s: %q", e.Code, e.Data)
	}
	if t, xid, ok := e.Offending(); ok {
		return fmt.Sprintf("openflow: peer says %s about %s (xid %#x)", e.Code, t, xid)
	}
	return fmt.Sprintf("openflow: peer says %s", e.Code)
}

// Is makes errors.Is(err, &Error{Code: TableFull}) compare codes only.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

func (*Error) Type() Type { return TypeError }

func (e *Error) appendBody(b []byte, _ uint32) ([]byte, error) {
	b = be.AppendUint32(b, uint32(e.Code))
	if e.Kind() == ErrExperimenter {
		b = be.AppendUint32(b, e.Experimenter)
	}
	return append(b, e.Data...), nil
}

func decodeError(r *reader) *Error {
	e := &Error{Code: ErrorCode(r.u32())}
	if e.Kind() == ErrExperimenter {
		e.Experimenter = r.u32()
	}
	e.Data = r.copy(len(r.b))
	return e
}

// NewError is an error message about an offending one, in wire form, of which it keeps the first 64 bytes.
func NewError(code ErrorCode, offending []byte) *Error {
	e := &Error{Code: code, Data: append([]byte(nil), offending[:min(len(offending), 64)]...)}
	if e.Kind() == ErrExperimenter {
		e.Experimenter = onf
	}
	return e
}

// Sentinels of a connection.
var (
	ErrClosed   = errors.New("openflow: connection closed")
	ErrTimeout  = errors.New("openflow: peer does not answer echo requests")
	ErrOverflow = errors.New("openflow: events are not read fast enough")
	// ErrNoBundles: the switch does not know ONF bundles (EXT-230).
	ErrNoBundles = errors.New("openflow: switch has no bundles")
	// ErrNotOpenFlow: what the peer sends first is no hello.
	ErrNotOpenFlow = errors.New("openflow: peer does not speak OpenFlow")
	// ErrTooLong: a multipart answer exceeds Options.Parts.
	ErrTooLong = errors.New("openflow: answer is too long")
)

// VersionError: the peer does not speak OpenFlow 1.3.
type VersionError struct {
	Versions uint32 // bit n: wire version n; those that the peer offered, 0 if it said only the highest
	Highest  uint8
}

func (e *VersionError) Error() string {
	if e.Versions == 0 {
		return fmt.Sprintf("openflow: peer speaks %s at most, want 1.3", versionName(e.Highest))
	}
	var names []string
	for v := e.Versions; v != 0; v &= v - 1 {
		names = append(names, versionName(uint8(bits.TrailingZeros32(v))))
	}
	return fmt.Sprintf("openflow: peer speaks %s, want 1.3", strings.Join(names, ", "))
}

func versionName(v uint8) string {
	if v >= 1 && v <= 6 {
		return fmt.Sprintf("1.%d", v-1)
	}
	return fmt.Sprintf("wire version %d", v)
}

// DecodeError says what is wrong with a message that was read.
type DecodeError struct {
	Type   Type
	XID    uint32
	Code   ErrorCode // what to answer a peer
	Reason string
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("openflow: malformed %s (xid %#x): %s", e.Type, e.XID, e.Reason)
}

// FlowError says which message of several the peer refused.
type FlowError struct {
	Index   int // in the messages given
	Message Message
	Err     *Error
}

func (e *FlowError) Error() string {
	what := e.Message.Type().String()
	if f, ok := e.Message.(*FlowMod); ok {
		what = f.String()
	}
	return fmt.Sprintf("openflow: message %d refused with %s: %s", e.Index, e.Err.Code, what)
}

func (e *FlowError) Unwrap() error { return e.Err }

func (c ErrorCode) String() string {
	if c>>16 == 0xffff {
		if i := int(c&0xffff) - 2300; i >= 0 && i < len(bundleErrors) {
			return "OFPBFC_" + bundleErrors[i]
		}
		return fmt.Sprintf("experimenter error %d", c&0xffff)
	}
	t, i := int(c>>16), int(c&0xffff)
	if t < len(errorNames) && i < len(errorNames[t].codes) {
		return errorNames[t].prefix + errorNames[t].codes[i]
	}
	return fmt.Sprintf("error type %d code %d", t, i)
}

var bundleErrors = strings.Fields("UNKNOWN EPERM BAD_ID BUNDLE_EXIST BUNDLE_CLOSED OUT_OF_BUNDLES BAD_TYPE BAD_FLAGS MSG_BAD_LEN " +
	"MSG_BAD_XID MSG_UNSUP MSG_CONFLICT MSG_TOO_MANY MSG_FAILED TIMEOUT BUNDLE_IN_PROGRESS")

// errorNames is indexed by type, then code (7.4.4).
var errorNames = [...]struct {
	prefix string
	codes  []string
}{
	{"OFPHFC_", strings.Fields("INCOMPATIBLE EPERM")},
	{"OFPBRC_", strings.Fields("BAD_VERSION BAD_TYPE BAD_MULTIPART BAD_EXPERIMENTER BAD_EXP_TYPE EPERM BAD_LEN BUFFER_EMPTY " +
		"BUFFER_UNKNOWN BAD_TABLE_ID IS_SLAVE BAD_PORT BAD_PACKET MULTIPART_BUFFER_OVERFLOW")},
	{"OFPBAC_", strings.Fields("BAD_TYPE BAD_LEN BAD_EXPERIMENTER BAD_EXP_TYPE BAD_OUT_PORT BAD_ARGUMENT EPERM TOO_MANY BAD_QUEUE " +
		"BAD_OUT_GROUP MATCH_INCONSISTENT UNSUPPORTED_ORDER BAD_TAG BAD_SET_TYPE BAD_SET_LEN BAD_SET_ARGUMENT")},
	{"OFPBIC_", strings.Fields("UNKNOWN_INST UNSUP_INST BAD_TABLE_ID UNSUP_METADATA UNSUP_METADATA_MASK BAD_EXPERIMENTER BAD_EXP_TYPE " +
		"BAD_LEN EPERM DUP_INST")},
	{"OFPBMC_", strings.Fields("BAD_TYPE BAD_LEN BAD_TAG BAD_DL_ADDR_MASK BAD_NW_ADDR_MASK BAD_WILDCARDS BAD_FIELD BAD_VALUE BAD_MASK " +
		"BAD_PREREQ DUP_FIELD EPERM")},
	{"OFPFMFC_", strings.Fields("UNKNOWN TABLE_FULL BAD_TABLE_ID OVERLAP EPERM BAD_TIMEOUT BAD_COMMAND BAD_FLAGS")},
	{"OFPGMFC_", strings.Fields("GROUP_EXISTS INVALID_GROUP WEIGHT_UNSUPPORTED OUT_OF_GROUPS OUT_OF_BUCKETS CHAINING_UNSUPPORTED " +
		"WATCH_UNSUPPORTED LOOP UNKNOWN_GROUP CHAINED_GROUP BAD_TYPE BAD_COMMAND BAD_BUCKET BAD_WATCH EPERM")},
	{"OFPPMFC_", strings.Fields("BAD_PORT BAD_HW_ADDR BAD_CONFIG BAD_ADVERTISE EPERM")},
	{"OFPTMFC_", strings.Fields("BAD_TABLE BAD_CONFIG EPERM")},
	{"OFPQOFC_", strings.Fields("BAD_PORT BAD_QUEUE EPERM")},
	{"OFPSCFC_", strings.Fields("BAD_FLAGS BAD_LEN EPERM")},
	{"OFPRRFC_", strings.Fields("STALE UNSUP BAD_ROLE")},
	{"OFPMMFC_", strings.Fields("UNKNOWN METER_EXISTS INVALID_METER UNKNOWN_METER BAD_COMMAND BAD_FLAGS BAD_RATE BAD_BURST BAD_BAND " +
		"BAD_BAND_TYPE OUT_OF_METERS OUT_OF_BANDS")},
	{"OFPTFFC_", strings.Fields("BAD_TABLE BAD_METADATA BAD_TYPE BAD_LEN BAD_ARGUMENT EPERM")},
}
