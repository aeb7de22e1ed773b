package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A browser logs in from an address, and keeps the cookies that it gets.
type browser struct {
	*site
	address string
	cookies []*http.Cookie
}

func (b *browser) login(name, password string) *httptest.ResponseRecorder {
	values := url.Values{"name": {name}, "password": {password}}
	r := httptest.NewRequest("POST", "/", strings.NewReader(values.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.RemoteAddr = b.address + ":1234"
	for _, cookie := range b.cookies {
		r.AddCookie(cookie)
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	b.cookies = append(b.cookies, w.Result().Cookies()...)
	return w
}

// inBubble runs a test in which time passes at once. checked counts the passwords that were checked.
func inBubble(t *testing.T, test func(t *testing.T, s *site, checked *atomic.Int64)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var checked atomic.Int64
		s, err := newSite(func(name, password string) bool {
			checked.Add(1)
			return isRight(name, password)
		})
		require.NoError(t, err)
		test(t, s, &checked)
	})
}

func TestForm(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *atomic.Int64) {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Contains(t, w.Body.String(), `name="password"`)

		b := &browser{site: s, address: "192.0.2.1"}
		assert.Contains(t, b.login("Ann ", passwordOfAnn).Body.String(), "Welcome, ann.")
		assert.Contains(t, b.login("ann", "wrong").Body.String(), "The name or the password is wrong.")
		assert.Equal(t, http.StatusBadRequest, b.login("", "x").Code)
	})
}

// Five wrong passwords lock the account for the address for a minute, also for the right password.
// The next lock lasts for two. A success resets that. An attempt that comes up to five seconds before
// the end of the lock waits for it.
func TestLock(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *atomic.Int64) {
		b := &browser{site: s, address: "192.0.2.1"}
		lock := func(wait, text string) {
			t.Helper()
			for range 5 {
				require.Equal(t, http.StatusUnauthorized, b.login("ann", "wrong").Code)
			}
			w := b.login("ann", passwordOfAnn)
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
			assert.Equal(t, wait, w.Header().Get("Retry-After"))
			assert.Contains(t, w.Body.String(), "Try again in "+text+".")
		}
		lock("60", "1m0s")
		time.Sleep(time.Minute)
		lock("120", "2m0s")
		time.Sleep(2*time.Minute - 5*time.Second)
		require.Equal(t, http.StatusOK, b.login("ann", passwordOfAnn).Code)
		lock("60", "1m0s")
	})
}

// An account that does not exist is limited and answered like any other.
func TestUnknownAccount(t *testing.T) {
	answers := func(name string) (codes []int, pages []string) {
		inBubble(t, func(t *testing.T, s *site, _ *atomic.Int64) {
			b := &browser{site: s, address: "192.0.2.1"}
			for range 7 {
				w := b.login(name, "wrong")
				codes, pages = append(codes, w.Code), append(pages, w.Body.String())
			}
		})
		return codes, pages
	}
	codes, pages := answers("ann")
	codesOfNobody, pagesOfNobody := answers("nobody")
	assert.Equal(t, []int{401, 401, 401, 401, 401, 429, 429}, codes)
	assert.Equal(t, codes, codesOfNobody)
	assert.Equal(t, pages, pagesOfNobody)
}

// Eight right passwords at once lock nobody out.
func TestRightPasswordsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, checked *atomic.Int64) {
		var logins sync.WaitGroup
		for range 8 {
			logins.Go(func() {
				b := &browser{site: s, address: "192.0.2.1"}
				assert.Equal(t, http.StatusOK, b.login("ann", passwordOfAnn).Code)
			})
		}
		logins.Wait()
		assert.EqualValues(t, 8, checked.Load())
	})
}

// Of a thousand guesses at once, five reach the check.
func TestGuessesAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, checked *atomic.Int64) {
		var guesses sync.WaitGroup
		for range 1000 {
			guesses.Go(func() {
				b := &browser{site: s, address: "192.0.2.1"}
				assert.NotEqual(t, http.StatusOK, b.login("ann", "wrong").Code)
			})
		}
		guesses.Wait()
		assert.EqualValues(t, 5, checked.Load())
	})
}

// A slow reader is a client that has the status of an answer at once, and does not read the page.
type slowReader struct{ *httptest.ResponseRecorder }

func (w slowReader) Write(p []byte) (int, error) {
	time.Sleep(40 * time.Second) // longer than an attempt is held
	return w.ResponseRecorder.Write(p)
}

// A client that does not read what the site answers cannot guess more often than others.
func TestSlowReader(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, checked *atomic.Int64) {
		var guesses sync.WaitGroup
		for range 100 {
			guesses.Go(func() {
				r := httptest.NewRequest("POST", "/", strings.NewReader("name=ann&password=wrong"))
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				s.ServeHTTP(slowReader{httptest.NewRecorder()}, r)
			})
			time.Sleep(500 * time.Millisecond)
		}
		assert.EqualValues(t, 5, checked.Load())
		guesses.Wait()
	})
}

// Whoever is refused among many guesses is told to wait for a few locks at most, not for one lock
// after another of all that stand in line. (An address may be told to wait for its own lock.)
func TestToldWait(t *testing.T) {
	for range 10 { // which attempts stand in line at a time depends on the scheduler
		inBubble(t, func(t *testing.T, s *site, _ *atomic.Int64) {
			var guesses sync.WaitGroup
			for range 300 {
				synctest.Wait()
				guesses.Go(func() {
					w := (&browser{site: s, address: "192.0.2.1"}).login("ann", "wrong")
					if w.Code == http.StatusTooManyRequests {
						seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
						assert.NoError(t, err)
						assert.LessOrEqual(t, seconds, 60*60)
					}
				})
			}
			guesses.Wait()
		})
	}
}

// The page says the time of Retry-After, also if the wait is a whole number of seconds.
func TestToldWaitIsRoundedUp(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *atomic.Int64) {
		b := &browser{site: s, address: "192.0.2.1"}
		for range 5 {
			require.Equal(t, http.StatusUnauthorized, b.login("ann", "wrong").Code)
		}
		for _, later := range []time.Duration{time.Second, 900 * time.Millisecond, 1} {
			time.Sleep(later)
			w := b.login("ann", "wrong")
			assert.Contains(t, w.Body.String(), "Try again in "+w.Header().Get("Retry-After")+"s.")
		}
	})
}

// Others lock the account from many addresses. A device from which its owner has logged in before
// is not locked out, and another one is.
func TestDevice(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *atomic.Int64) {
		known := &browser{site: s, address: "192.0.2.1"}
		require.Equal(t, http.StatusOK, known.login("ann", passwordOfAnn).Code)
		for i := range 20 {
			other := &browser{site: s, address: fmt.Sprint("198.51.100.", i%10)}
			require.Equal(t, http.StatusUnauthorized, other.login("ann", "wrong").Code)
		}
		unknown := &browser{site: s, address: "203.0.113.1"}
		assert.Equal(t, http.StatusTooManyRequests, unknown.login("ann", passwordOfAnn).Code)
		assert.Equal(t, http.StatusOK, known.login("ann", passwordOfAnn).Code)
	})
}

// Others in the same network lock the account for its address, and then the address. A device from
// which its owner has logged in before is not locked out, and another one of the network is.
func TestDeviceInSharedNetwork(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *atomic.Int64) {
		known := &browser{site: s, address: "192.0.2.1"}
		require.Equal(t, http.StatusOK, known.login("ann", passwordOfAnn).Code)
		other := &browser{site: s, address: known.address}
		for range 5 {
			require.Equal(t, http.StatusUnauthorized, other.login("ann", "wrong").Code)
		}
		assert.Equal(t, http.StatusTooManyRequests, other.login("ann", passwordOfAnn).Code)
		assert.Equal(t, http.StatusOK, known.login("ann", passwordOfAnn).Code)
		for i := range 95 {
			require.Equal(t, http.StatusUnauthorized, other.login(fmt.Sprint("user ", i), "wrong").Code)
		}
		assert.Equal(t, http.StatusTooManyRequests, other.login("another", "wrong").Code)
		assert.Equal(t, http.StatusOK, known.login("ann", passwordOfAnn).Code)
	})
}

// Whoever steals the cookie of a device may guess as often as the smallest limit says, from all
// addresses together, and only the password of the cookie's account. Nobody else is locked out.
func TestStolenDevice(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *atomic.Int64) {
		owner := &browser{site: s, address: "192.0.2.1"}
		require.Equal(t, http.StatusOK, owner.login("ann", passwordOfAnn).Code)
		guess := func(i int, name string) int {
			thief := &browser{site: s, address: fmt.Sprint("203.0.113.", i), cookies: owner.cookies}
			return thief.login(name, "wrong").Code
		}
		for i := range 5 {
			require.Equal(t, http.StatusUnauthorized, guess(i, "ann"))
		}
		assert.Equal(t, http.StatusTooManyRequests, guess(5, "ann"))
		assert.Equal(t, http.StatusUnauthorized, guess(6, "bob"), "the cookie is for ann")
		withoutCookie := &browser{site: s, address: "192.0.2.2"}
		assert.Equal(t, http.StatusOK, withoutCookie.login("ann", passwordOfAnn).Code)
	})
}

// The cookie of an account is no cookie for another one, even if a part of the name is moved into
// the nonce.
func TestForgedDevice(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *atomic.Int64) {
		for i := range 20 {
			other := &browser{site: s, address: fmt.Sprint("198.51.100.", i%10)}
			require.Equal(t, http.StatusUnauthorized, other.login("ann", "wrong").Code)
		}
		own := s.deviceCookie("x ann")
		nonce, signature, _ := strings.Cut(own.Value, ".")
		forged := &http.Cookie{Name: deviceName, Value: nonce + " x." + signature}
		b := &browser{site: s, address: "192.0.2.1", cookies: []*http.Cookie{forged}}
		assert.Equal(t, http.StatusTooManyRequests, b.login("ann", "wrong").Code)
	})
}

// An address that guesses the passwords of many accounts is locked. That it logs in to an account
// of its own in between does not help.
func TestAddress(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *atomic.Int64) {
		b := &browser{site: s, address: "192.0.2.1"}
		for i := range 100 {
			require.Equal(t, http.StatusUnauthorized, b.login(fmt.Sprint("user ", i), "wrong").Code)
			if i%10 == 0 {
				require.Equal(t, http.StatusOK, b.login("ann", passwordOfAnn).Code)
			}
		}
		w := b.login("another", "wrong")
		assert.Equal(t, http.StatusTooManyRequests, w.Code)
		assert.Equal(t, "3600", w.Header().Get("Retry-After"))
	})
}
