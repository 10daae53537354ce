package execd

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
)

// forward hands a request on to a port of the sandbox. rest is "{port}/{path}".
func (s *Server) forward(w http.ResponseWriter, r *http.Request, rest string) {
	port, _, _ := strings.Cut(rest, "/")
	if port == "" {
		http.Error(w, "port is required", http.StatusBadRequest)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 1<<16-1 {
		http.Error(w, "invalid port", http.StatusBadRequest)
		return
	}
	target := &url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", port)}
	prefix := "/proxy/" + port
	p := httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			out := pr.Out.URL
			// The path as it was written: what the service sees must not depend on who is in between.
			out.Path = after(out.Path, prefix)
			if out.RawPath != "" {
				out.RawPath = after(out.RawPath, prefix)
			}
			pr.SetURL(target)
			pr.Out.Host = pr.In.Host
			pr.SetXForwarded()
			if port != strconv.Itoa(s.cfg.Port) {
				pr.Out.Header.Del(tokenHeader) // the daemon's secret is not the service's
			}
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			http.Error(w, "Bad Gateway", http.StatusBadGateway)
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	// The server would otherwise close the request's body with the first byte of the answer, while it may still be
	// on its way to the service: that cuts the answer.
	_ = http.NewResponseController(w).EnableFullDuplex()
	p.ServeHTTP(w, r)
}

func after(path, prefix string) string {
	path = strings.TrimPrefix(path, prefix)
	if path == "" {
		return "/"
	}
	return path
}
