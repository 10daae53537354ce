package opensandbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// silentDownload is how long a daemon may be silent before it is asked what it is to read. It waits for ever
// for somebody who writes into a pipe.
const silentDownload = time.Second

// whileSilent gives a download up that waits for something that is no file. What it returns ends the watch.
func (i *instance) whileSilent(ctx context.Context, remotePath string, giveUp context.CancelCauseFunc) (heard func()) {
	watch, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		if !pause(watch, silentDownload) {
			return
		}
		var no *core.Error
		if err := i.checkSize(watch, remotePath, math.MaxInt64); errors.As(err, &no) && no.Kind == core.KindInvalid {
			giveUp(err)
		}
	}()
	return func() {
		stop()
		<-over
	}
}

// checkSize makes sure of a download whose length nobody announced, or that is empty: a server may
// end a body in good order that its daemon did not, and a pipe gives nothing.
func (i *instance) checkSize(ctx context.Context, remotePath string, got int64) error {
	var infos map[string]struct {
		Type string `json:"type"`
		Size int64  `json:"size"`
	}
	if _, err := i.ask(ctx, call{method: http.MethodGet}, "/files/info?path="+url.QueryEscape(remotePath), &infos); err != nil {
		return err
	}
	for _, f := range infos {
		if f.Type == "directory" {
			return core.Errorf(core.KindInvalid, "download", "%s is a directory", remotePath)
		}
		if f.Type == "symlink" { // it says nothing of the file, whose bytes have come
			return i.checkTarget(ctx, remotePath, got)
		}
		if f.Type == "other" {
			return core.Errorf(core.KindInvalid, "download", "%s is not a regular file", remotePath)
		}
		if f.Size > got {
			return tooShort(got, f.Size)
		}
	}
	return nil
}

func tooShort(got, size int64) error {
	return &transportError{what: "incomplete chunked read", err: fmt.Errorf("%d of %d bytes came", got, size)}
}

// lookBehind prints how large the file is that a link leads to, or that it is none.
const lookBehind = `case $1 in "~" | "~/"*) set -- "$HOME${1#"~"}" ;; esac
if [ -d "$1" ]; then echo directory; elif [ -f "$1" ]; then wc -c <"$1"; else echo other; fi`

// checkTarget is checkSize for what a link leads to: daemons tell only of the link itself.
func (i *instance) checkTarget(ctx context.Context, remotePath string, got int64) error {
	said, err := i.scriptOutput(ctx, lookBehind, remotePath)
	if err != nil {
		// Not %w: that the sandbox can't look says nothing against the file.
		return fmt.Errorf("what the link %s leads to can't be looked at: %v", remotePath, err)
	}
	size, err := strconv.ParseInt(strings.TrimSpace(said), 10, 64)
	switch {
	case strings.TrimSpace(said) == "directory":
		return core.Errorf(core.KindInvalid, "download", "%s is a directory", remotePath)
	case err != nil:
		return core.Errorf(core.KindInvalid, "download", "%s is not a regular file", remotePath)
	case size > got:
		return tooShort(got, size)
	}
	return nil
}
