package core

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// another gives an Owner for a process that was started, and the process.
func another(t *testing.T) (Owner, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p, err := readProcess(cmd.Process.Pid)
	require.NoError(t, err)
	o := Self()
	o.PID, o.Start = cmd.Process.Pid, p.start
	return o, cmd
}

// deadOwner is one whose process has ended.
func deadOwner(t *testing.T) Owner {
	t.Helper()
	o, cmd := another(t)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Equal(t, OwnerDead, o.State())
	return o
}

func TestAnOwnerLivesUntilItsEnd(t *testing.T) {
	assert.Equal(t, OwnerAlive, Self().State())
	assert.True(t, Self().Here())
	o, cmd := another(t)
	assert.Equal(t, OwnerAlive, o.State())
	require.NoError(t, cmd.Process.Kill())
	// A dead process that nobody has taken note of still has its number.
	for {
		p, err := readProcess(o.PID)
		require.NoError(t, err)
		if p.ended {
			break
		}
	}
	assert.Equal(t, OwnerDead, o.State())
	_ = cmd.Wait()
	assert.Equal(t, OwnerDead, o.State())
}

// A number that was given to another process does not keep the dead one's sandboxes.
func TestANumberThatIsUsedAgainIsAnotherProcess(t *testing.T) {
	o, _ := another(t)
	o.Start += "1"
	assert.Equal(t, OwnerDead, o.State())
}

func TestWhatCanNotBeSeenIsNotTakenForDead(t *testing.T) {
	dead := deadOwner(t)
	for name, change := range map[string]func(*Owner){
		"another machine":              func(o *Owner) { o.Boot, o.Host = "other", "other" },
		"another machine of no name":   func(o *Owner) { o.Boot, o.Host = "other", "localhost" },
		"another process namespace":    func(o *Owner) { o.Space = "pid:[1]" },
		"no number":                    func(o *Owner) { o.PID = 0 },
		"no start":                     func(o *Owner) { o.Start = "" },
		"no boot":                      func(o *Owner) { o.Boot = "" },
		"written by another programme": func(o *Owner) { *o = Owner{} },
	} {
		o := dead
		change(&o)
		assert.Equal(t, OwnerUnknown, o.State(), name)
	}
}

func TestAMachineThatWasStartedAnewHasNoProcessOfBefore(t *testing.T) {
	o, me := Self(), Self()
	me.Host, o.Host, o.Boot = "lab-7", "lab-7", "before"
	assert.Equal(t, OwnerDead, o.stateSeenFrom(me))
}

func TestTheRunIsTheEnvironmentsOrRandom(t *testing.T) {
	if named := os.Getenv(RunEnv); named != "" {
		assert.Equal(t, named, Self().Run)
		return
	}
	assert.Regexp(t, "^[0-9a-f]{12}$", Self().Run)
}
