package access

import (
	"net/http"
	"net/url"
)

// foreign says whether a browser sends a request for a page of another origin, which asks for more than to look. A
// browser shows the client certificate of who sits before it to every server that a page names, a WebSocket goes to any
// server, and none of that asks the server first. Who has been asked to act by a page need not know.
//
// What no page can have a browser send without asking tells that it is not that: a token, or that somebody else has
// passed the request on, as an API server does for pages that it serves.
func foreign(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		if r.Header.Get("Upgrade") == "" {
			return false // no page sees the answer
		}
	}
	if r.Header.Get("X-Forwarded-For") != "" || bearer(r) != "" {
		return false
	}
	if token, _, err := webSocketToken(r); token != "" || err != nil {
		return false // it counts, or is refused for what it is
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return false
	case "":
		origin := r.Header.Get("Origin")
		u, err := url.Parse(origin)
		return origin != "" && (err != nil || u.Host != r.Host)
	}
	return true
}
