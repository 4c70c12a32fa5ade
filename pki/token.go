package pki

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"regexp"
	"strings"
)

// Token lets one agent join: "weir1.ID.SECRET.CAHASH". ID names it (8 hexadecimal digits), SECRET (192 random bits, base64url) proves it,
// CAHASH (64 hexadecimal digits) is Authority.Hash.
type Token struct{ ID, Secret, Authority string }

// tokenVersion is the first part of every token.
const tokenVersion = "weir1"

var tokenParts = [...]*regexp.Regexp{
	regexp.MustCompile(`^[0-9a-f]{8}$`), regexp.MustCompile(`^[A-Za-z0-9_-]{32}$`), regexp.MustCompile(`^[0-9a-f]{64}$`),
}

// NewToken makes a random one for an authority.
func NewToken(authority string) Token {
	var b [4 + 24]byte
	_, _ = rand.Read(b[:]) // never fails
	return Token{ID: hex.EncodeToString(b[:4]), Secret: base64.RawURLEncoding.EncodeToString(b[4:]), Authority: authority}
}

// ErrToken is about a text that is no token. It does not repeat the text, which may be a secret.
var ErrToken = errors.New("this is no join token: want weir1.ID.SECRET.HASH, all of the line that `weir token create` printed")

// ParseToken reads what String gives; space around it is ignored.
func ParseToken(text string) (Token, error) {
	p := strings.Split(strings.TrimSpace(text), ".")
	if len(p) != 4 || p[0] != tokenVersion {
		return Token{}, ErrToken
	}
	for i, re := range tokenParts {
		if !re.MatchString(p[i+1]) {
			return Token{}, ErrToken
		}
	}
	return Token{ID: p[1], Secret: p[2], Authority: p[3]}, nil
}

// String gives the whole token: a secret.
func (t Token) String() string {
	return strings.Join([]string{tokenVersion, t.ID, t.Secret, t.Authority}, ".")
}

// SecretHash is what a manager keeps of a token. The secret is random and long, so a plain hash cannot be searched backwards.
func SecretHash(id, secret string) string {
	sum := sha256.Sum256([]byte(id + "." + secret))
	return hex.EncodeToString(sum[:])
}

// SameHash compares in constant time.
func SameHash(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
