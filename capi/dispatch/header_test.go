package dispatch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// defines reads the numbers that the C header gives to names.
func defines(t *testing.T) map[string]int64 {
	t.Helper()
	raw, err := os.ReadFile("../ngs.h")
	require.NoError(t, err)
	found := map[string]int64{}
	for _, m := range regexp.MustCompile(`(?m)^#define (NGS_\w+) \(?(-?\d+)\)?(?:\s|$)`).FindAllStringSubmatch(string(raw), -1) {
		n, err := strconv.ParseInt(m[2], 10, 64)
		require.NoError(t, err)
		found[m[1]] = n
	}
	return found
}

// The header is written by hand: its numbers are the ones that the code uses, and none is missing.
func TestTheHeaderHasTheCodesNumbers(t *testing.T) {
	want := map[string]int64{
		"NGS_OK": int64(OK), "NGS_EFORKED": int64(ErrForked), "NGS_EPANIC": int64(ErrPanic), "NGS_EBADHANDLE": int64(ErrBadHandle),
		"NGS_ECLOSED": int64(ErrClosed), "NGS_EAGAIN": int64(ErrAgain), "NGS_EABI": int64(ErrABI), "NGS_EINVAL": int64(ErrInvalid),
		"NGS_EOF": int64(EOF), "NGS_ETOOSMALL": int64(ErrTooSmall), "NGS_EEXISTS": int64(ErrExists), "NGS_ENOTSTARTED": int64(ErrNotStarted),
		"NGS_EFAILED":    int64(ErrFailed),
		"NGS_EVENT_DONE": int64(EventDone), "NGS_EVENT_READABLE": int64(EventReadable), "NGS_EVENT_WRITABLE": int64(EventWritable),
		"NGS_EVENT_STREAM_OPEN": int64(EventStreamOpen), "NGS_EVENT_LOG": int64(EventLog),
		"NGS_FLAG_JSON": int64(FlagJSON), "NGS_FLAG_FRAMED": int64(FlagFramed),
		"NGS_OP_NOOP": int64(opNoop), "NGS_OP_PROVIDER_NEW": int64(opProviderNew), "NGS_OP_PROVIDER_CLOSE": int64(opProviderClose),
		"NGS_OP_CREATE": int64(opCreate), "NGS_OP_CONNECT": int64(opConnect), "NGS_OP_EXEC": int64(opExec), "NGS_OP_UPLOAD": int64(opUpload),
		"NGS_OP_DOWNLOAD": int64(opDownload), "NGS_OP_STATUS": int64(opStatus), "NGS_OP_STOP": int64(opStop),
		"NGS_OP_SERIALIZE": int64(opSerialize), "NGS_OP_DISCONNECT": int64(opDisconnect), "NGS_OP_PAUSE": int64(opPause),
		"NGS_OP_RESUME": int64(opResume), "NGS_OP_ENDPOINT": int64(opEndpoint), "NGS_OP_SET_DEFAULTS": int64(opSetDefaults),
		"NGS_OP_PTY_OPEN": int64(opPTYOpen), "NGS_OP_PTY_ATTACH": int64(opPTYAttach), "NGS_OP_PTY_RESIZE": int64(opPTYResize),
		"NGS_OP_PTY_SIGNAL": int64(opPTYSignal), "NGS_OP_PTY_WAIT": int64(opPTYWait), "NGS_OP_PTY_DETACH": int64(opPTYDetach),
		"NGS_OP_PTY_REATTACH": int64(opPTYReattach), "NGS_OP_PTY_INFO": int64(opPTYInfo), "NGS_OP_PTY_CLOSE": int64(opPTYClose),
		"NGS_OP_PTY_DIAL": int64(opPTYDial),
		"NGS_OP_LIST":     int64(opList), "NGS_OP_REAP": int64(opReap), "NGS_OP_EXAMINE": int64(opExamine), "NGS_OP_TEST": int64(opTest),
	}
	for kind, code := range kindStatus {
		want["NGS_KIND_"+strings.ToUpper(string(kind))] = int64(code)
	}
	got := defines(t)
	delete(got, "NGS_ABI_MAJOR")
	delete(got, "NGS_ABI_MINOR")
	delete(got, "NGS_EVENT_MAX") // an expression; its event must fit, which the queue's tests show
	require.Equal(t, want, got)
	operations := 0
	for name := range want {
		if strings.HasPrefix(name, "NGS_OP_") {
			operations++
		}
	}
	require.Len(t, handlers, operations)
}

// A kind that core gains needs a number here and an exception in Python.
func TestEveryKindOfErrorHasANumber(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../core/errors.go", nil, 0)
	require.NoError(t, err)
	var kinds []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Kind") {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			kinds = append(kinds, text)
		}
		return true
	})
	var known []string
	for kind := range kindStatus {
		known = append(known, string(kind))
	}
	slices.Sort(kinds)
	slices.Sort(known)
	require.Equal(t, kinds, known)
}

func TestErrorsAreDescribed(t *testing.T) {
	code, raw := describe(fmt.Errorf("outer: %w", &core.Error{Kind: core.KindAuth, Op: "create", Provider: "p", SandboxID: "s1", Err: os.ErrPermission}))
	require.Equal(t, kindStatus[core.KindAuth], code)
	require.JSONEq(t, `{"code":-210,"kind":"auth","message":"outer: p create s1: permission denied","op":"create","provider":"p","sandbox_id":"s1","retryable":false}`, string(raw))
	code, _ = describe(core.Errorf("made_up", "", "x"))
	require.Equal(t, kindStatus[core.KindInternal], code)
	_, raw = describe(core.Errorf(core.KindCreate, "", "%s", strings.Repeat("é", MaxEvent)))
	require.Less(t, len(raw), 64<<10)
}
