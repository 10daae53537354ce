package opensandbox

import (
	"net/http"
	"strconv"
	"strings"
)

// appendHead appends the head of a request with a body to b. http.Request.Write does no more for such a request, but
// looks at so much on its way that this takes several times as long.
func appendHead(b []byte, req *http.Request) []byte {
	b = append(b, req.Method...)
	b = append(b, ' ')
	b = append(b, req.URL.RequestURI()...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, req.Host...)
	for name, values := range req.Header {
		for _, value := range values {
			b = append(b, "\r\n"...)
			b = append(b, name...)
			b = append(b, ": "...)
			b = append(b, value...)
		}
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		b = append(b, "\r\nUser-Agent: Go-http-client/1.1"...)
	}
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, req.ContentLength, 10)
	return append(b, "\r\n\r\n"...)
}

// plainHead tells whether appendHead may write what is in a request as it stands. The other ones, which may also be
// somebody's attempt to smuggle in a line, are for an http.Transport to refuse or to mend.
func plainHead(req *http.Request) bool {
	if req.Host == "" || !all(req.Host, isHost) || !all(req.Method, isName) {
		return false
	}
	for name, values := range req.Header {
		switch name {
		case "", "Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection", "Expect":
			return false
		}
		if !all(name, isName) {
			return false
		}
		for _, value := range values {
			if !all(value, isText) || strings.TrimSpace(value) != value {
				return false
			}
		}
	}
	return true
}

func all(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func isName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func isHost(c byte) bool { return isName(c) || c == '.' || c == ':' || c == '[' || c == ']' }

func isText(c byte) bool { return c >= ' ' && c <= '~' }
