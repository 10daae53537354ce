package docker

import (
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/stretchr/testify/assert"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestAnAddressIsToldWithoutItsPassword(t *testing.T) {
	for given, want := range map[string]string{
		"unix:///var/run/docker.sock":    "unix:///var/run/docker.sock",
		"tcp://user:hunter2@engine:2376": "tcp://user@engine:2376",
		"ssh://user@engine":              "ssh://user@engine",
		"npipe:////./pipe/docker_engine": "npipe:////./pipe/docker_engine",
	} {
		assert.Equal(t, want, withoutSecrets(given))
	}
}

func TestAContainersLabelsTellWhoseItIs(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	mark := stateMark()
	summary := func(change func(map[string]string)) container.Summary {
		labels := newLabels(waySocket, time.Minute)
		change(labels)
		return container.Summary{ID: "0123", Names: []string{"/nemo-gym-1"}, State: "running", Labels: labels, Created: 1000}
	}
	found := func(change func(map[string]string)) core.Found { return foundContainer(summary(change), mark) }

	f := found(func(map[string]string) {})
	assert.Equal(t, "nemo-gym-1", f.ID)
	assert.Equal(t, core.Self(), f.Owner)
	assert.Equal(t, core.OwnerAlive, f.OwnerState)
	assert.Equal(t, core.StatusRunning, f.Status)
	assert.WithinDuration(t, time.Now(), f.Created, 5*time.Second)
	assert.Equal(t, time.Minute, f.Expires.Sub(f.Created))

	dead := func(l map[string]string) { l[labelOwnerStart] = "1" }
	assert.Equal(t, core.OwnerDead, found(dead).OwnerState)
	for name, also := range map[string]func(map[string]string){
		"another state directory": func(l map[string]string) { l[labelOwnerState] = "0123456789ab" },
		"another machine":         func(l map[string]string) { l[labelOwnerBoot], l[labelHost] = "other", "other" },
		"it runs, so the machine was not started anew": func(l map[string]string) {
			l[labelOwnerBoot] = "other"
		},
		"labels of another program": func(l map[string]string) {
			clear(l)
			l[labelSandbox] = "1"
		},
	} {
		f := found(func(l map[string]string) {
			dead(l)
			also(l)
		})
		assert.Equal(t, core.OwnerUnknown, f.OwnerState, name)
	}

	// A number that does not fit must not become one that has passed.
	assert.True(t, found(func(l map[string]string) { l[labelTTL] = "9223372036.854776" }).Expires.IsZero())
	assert.True(t, found(func(l map[string]string) { l[labelTTL] = "soon" }).Expires.IsZero())
	assert.Equal(t, time.Unix(1000, 0), found(func(l map[string]string) { l[labelCreated] = "once" }).Created)
}
