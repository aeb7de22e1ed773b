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
)

// This file has the cookies of devices. Whoever has logged in once gets one. Its failures count for
// the device, and not for the account. So others who lock the account lock out nobody who has
// logged in from this device before; and whoever steals the cookie may guess as often as the limit
// says.

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

// deviceOrName returns the key of the device, if its cookie is for the account of the form, or else
// that of the account.
func (s *site) deviceOrName(r *http.Request) (string, error) {
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
	return "account " + name, nil
}
