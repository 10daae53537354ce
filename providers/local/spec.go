package local

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// warnAbout says once per create which fields of the spec have another meaning
// here than with a container, and which.
func warnAbout(id string, spec core.Spec) {
	var fields, what []string
	note := func(set bool, field, meaning string) {
		if set {
			fields = append(fields, field)
			if meaning != "" {
				what = append(what, meaning)
			}
		}
	}
	note(spec.Image != "", "image", "the image is ignored, commands use this machine's programs")
	note(spec.TTL > 0, "ttl_s", "the time to live is kept by the sandbox's own agent")
	note(spec.ReadyTimeout > 0, "ready_timeout_s", "the ready timeout bounds only the agent's start")
	note(len(spec.Ports) > 0, "ports", "ports are not mapped, services share this machine's")
	note(len(spec.ProviderOptions) > 0, "provider_options", "provider options are ignored")
	note(spec.Resources != core.Resources{}, "resources", "")
	if len(fields) == 0 {
		return
	}
	what = append(what, "resource limits are not enforced")
	slog.Warn(fmt.Sprintf("the local provider does not treat these spec fields as a container would: %s; %s",
		strings.Join(fields, ", "), strings.Join(what, "; ")), "sandbox_id", id)
}

// logLeft reports that a failed create could not clean up after itself.
func logLeft(id string, err error) {
	slog.Warn("a sandbox that could not be created left something behind; it is cleared away by the next process that uses the provider", "sandbox_id", id, "error", err)
}
