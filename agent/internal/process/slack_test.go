package process

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// asCalm makes the test program one that has called Calm.
const asCalm = "NGS_TEST_CALM"

func TestMain(m *testing.M) {
	if os.Getenv(asCalm) != "" {
		os.Exit(calmMain())
	}
	os.Exit(m.Run())
}

// calmMain tells the slack of this program and lets a child tell its own.
func calmMain() int {
	Calm()
	fmt.Printf("%v %d\n", os.Args[1:], slack())
	_, ended, err := NewReaper(nil).Start("/bin/cat", []string{"cat", "/proc/self/timerslack_ns"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return ExitCode(<-ended)
}

func TestCalmIsOfTheProgramAlone(t *testing.T) {
	calm := func(own uintptr) string {
		runtime.LockOSThread() // what is started has this thread's slack
		defer runtime.UnlockOSThread()
		before := slack()
		require.NotZero(t, before)
		require.NoError(t, setSlack(own))
		defer func() { require.NoError(t, setSlack(uintptr(before))) }()
		cmd := exec.Command("/proc/self/exe", "an argument")
		cmd.Env = append(os.Environ(), asCalm+"=1")
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", said)
		return string(said)
	}
	require.Equal(t, "[an argument] 1000001\n50000\n", calm(usualSlack))
	require.Equal(t, "[an argument] 70000\n70000\n", calm(70_000), "somebody chose this")
}
