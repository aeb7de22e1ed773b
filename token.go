package ratelimit

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/ratelimit-go/ratelimit/keyhint"
)

// This file has the tokens by which another process settles a hold.

// A token is base64 of a version (1 byte), the number of events, the instant at which they may
// happen, and the ID of the hold (8 bytes each), and the first bytes of a hash of these and of what
// the token belongs to.
const (
	tokenVersion = 1
	tokenFields  = 1 + 3*8
	tokenSize    = tokenFields + 14 // a multiple of 3, so that no bits are left over
)

// Token returns a short text by which another process can settle the hold, or cancel the
// reservation before its turn: see [Limiter.Resume]. It does not show the key, but whoever has it
// can settle the hold. It is empty if there is nothing to settle: if r is nil, or the events have
// happened when it was made. The Reservation of a [HoldAll] has no token, but each of its
// [Reservation.Parts] has one.
func (r *Reservation) Token() string {
	if r == nil || r.holdID == 0 {
		return ""
	}
	b := make([]byte, 0, tokenSize)
	b = binary.BigEndian.AppendUint64(append(b, tokenVersion), uint64(r.n))
	b = binary.BigEndian.AppendUint64(b, r.due)
	b = binary.BigEndian.AppendUint64(b, r.holdID)
	return base64.RawURLEncoding.EncodeToString(append(b, r.l.seal(r.key, b)...))
}

// seal returns the hash of a token's fields, and of what they belong to: a key of a limiter, with
// its name and kind; in memory, one of a store.
func (l *limiter) seal(key string, fields []byte) []byte {
	kind, within := "", uint64(0)
	if l.ownLimits == nil {
		kind = l.limit.Kind()
	}
	if l.local != nil {
		within = l.local.Space.Fingerprint(key)
	}
	hash := sha256.New()
	hash.Write(fields)
	for _, s := range []string{l.name, kind, key} {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		hash.Write([]byte(s))
	}
	hash.Write(binary.BigEndian.AppendUint64(nil, within))
	return hash.Sum(nil)[:tokenSize-tokenFields]
}

// errToken is the error of a text that is no token.
func errToken(why string, args ...any) error {
	return fmt.Errorf("%w: no token of a hold: "+why, append([]any{ErrInvalid}, args...)...)
}

// Resume implements [Limiter].
func (l *limiter) Resume(ctx context.Context, key, token string) (*Reservation, error) {
	if err := l.check(ctx, 0); err != nil {
		return nil, err
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	switch {
	case err != nil:
		return nil, errToken("%w", err)
	case len(b) != tokenSize || b[0] != tokenVersion ||
		base64.RawURLEncoding.EncodedLen(len(b)) != len(token): // the decoder skips line breaks
		return nil, errToken("it has %d bytes", len(token))
	case string(l.seal(key, b[:tokenFields])) != string(b[tokenFields:]):
		return nil, errToken("it is not one of key %s of limiter %q", keyhint.Of(key), l.name)
	}
	field := func(i int) uint64 { return binary.BigEndian.Uint64(b[1+8*i:]) }
	n, due, id := field(0), field(1), field(2)
	if n > math.MaxInt || id == 0 || id >= 1<<53 {
		return nil, errToken("it has impossible numbers")
	}
	lim, err := l.limitOf(ctx, key)
	if err != nil {
		return nil, err
	}
	return &Reservation{l: l, n: int(n), due: due, key: key, limit: lim, holdID: id}, nil
}
