package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// This file has the cookies of devices. Whoever logs in to an account gets one. From then on, all
// limits count the failures of the device by themselves. So nobody else locks the device out, from
// elsewhere or from the same address. Whoever steals the cookie may guess as often as the smallest
// limit says.

const deviceName = "device"

// deviceCookie returns a new cookie for an account.
func (s *site) deviceCookie(account string) *http.Cookie {
	nonce := rand.Text()
	return &http.Cookie{
		Name:     deviceName,
		Value:    nonce + "." + s.signature(account, nonce),
		MaxAge:   int((365 * 24 * time.Hour).Seconds()),
		HttpOnly: true,
		Secure:   true, // most browsers accept it from localhost, too
		SameSite: http.SameSiteStrictMode,
	}
}

func (s *site) signature(account, nonce string) string {
	mac := hmac.New(sha256.New, s.secret)
	// Quoted, because a nonce may be anything that a client writes into a cookie. Without quotes,
	// the owner of an account "x ann" could move the x from the name into the nonce, and have a
	// cookie for ann.
	fmt.Fprintf(mac, "%q %q", nonce, account)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// deviceOr returns a function that finds the key of the device, if the device has a cookie for the
// account of the form, and else what keyOf finds.
func (s *site) deviceOr(keyOf key.Func) key.Func {
	return func(r *http.Request) (string, error) {
		name, err := nameOf(r)
		if err != nil {
			return "", err
		}
		for _, cookie := range r.CookiesNamed(deviceName) {
			nonce, signature, _ := strings.Cut(cookie.Value, ".")
			if hmac.Equal([]byte(signature), []byte(s.signature(name, nonce))) {
				return "device " + nonce, nil
			}
		}
		k, err := keyOf(r)
		return "no device " + k, err // so that no name is the key of a device
	}
}
