package opensandbox

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// straightenTimeout bounds the question whether there is a shorter way: there is one already.
const straightenTimeout = 2 * time.Second

// straighten leaves out the daemon's own forwarder where the server's answer leads through it. A server that publishes
// the daemon's port reaches all other ports through the daemon, at /proxy/{port}, and gives that form for the daemon's
// own port too: each request would pass the daemon twice.
func (i *instance) straighten(ctx context.Context) {
	i.mu.Lock()
	at := i.at
	i.mu.Unlock()
	if at == nil || i.p.cfg.Connection.UseServerProxy {
		return
	}
	short, ok := strings.CutSuffix(at.url, "/proxy/"+strconv.Itoa(daemonPort))
	if !ok {
		return
	}
	// Below another path, or with headers that name the sandbox, it is somebody else's forwarder.
	if u, err := url.Parse(short); err != nil || u.Path != "" || len(at.header) > 1 || len(at.header) == 1 && at.header.Get(headerToken) == "" {
		return
	}
	// A name that no session has: only the daemon answers in this way.
	_, err := i.p.rest.do(ctx, call{method: http.MethodGet, url: short + "/pty/none", header: at.header.Clone(), timeout: straightenTimeout}, nil)
	if statusOf(err) != http.StatusNotFound || codeOf(err) != codePTYNotFound {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.at == at {
		i.at = &endpoint{url: short, header: at.header}
	}
}
